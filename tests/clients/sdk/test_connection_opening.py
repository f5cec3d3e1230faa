"""Connections lost before the server has said ``ready``."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import threading
from collections.abc import Awaitable, Callable

import pytest
from whisper_stream.clients.errors import ConnectionLost, RemoteError
from whisper_stream.clients.sdk.connection import connect
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, Peer, Script, fake_server, talk
from ...helpers.reconnect_rig import AUDIO, converse, speak, words
from ...helpers.relay import Relay, relay
from ...helpers.server_rig import daemon, speech


def hanging_up(times: int, after: Callable[[Peer], Awaitable[None]] = talk) -> Script:
    """A server that hangs up so often before it is ready, without a word; then it does ``after``."""
    left = [times]

    async def script(peer: Peer) -> None:
        if left[0] == 0:
            await after(peer)
            return
        left[0] -= 1
        while not isinstance(await peer.receive(), wire.Start):
            pass
        peer.socket.transport.abort()

    return script


def test_a_connection_lost_before_ready_is_made_again() -> None:
    """What was said meanwhile is sent from the first byte on, and only one ``ready`` is told."""
    audio = speech(3.0, seed=2)
    lost: list[bool] = []

    async def run(url: str) -> list[wire.ServerMessage]:
        start = wire.Start(language="en")
        async with connect(url, start, on_lost=lambda: lost.append(True)) as stream:
            await asyncio.gather(stream.send_audio(audio), stream.send(wire.Ping(id="p")))
            await stream.eos()
            return [message async for message in stream]

    with fake_server(hanging_up(2)) as server:
        messages = asyncio.run(run(server.url))
        assert len(server.peers) == 3
        assert bytes(server.peers[-1].audio) == audio
    assert [type(m) for m in messages[:2]] == [wire.Ready, wire.Partial]
    assert isinstance(messages[-1], wire.Done) and len(words(messages)) == len(WORDS)
    assert not any(isinstance(m, wire.Resumed) for m in messages)
    assert lost == [True]


@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_a_server_that_never_gets_ready_is_given_up(seconds: float) -> None:
    async def run(url: str) -> None:
        async with connect(url, wire.Start(), reconnect_seconds=seconds) as stream:
            with pytest.raises(ConnectionLost, match="was lost before"):
                await anext(aiter(stream))

    with fake_server(hanging_up(1_000)) as server:
        asyncio.run(run(server.url))
        assert len(server.peers) == 1 if seconds == 0 else len(server.peers) > 1


def test_a_refusal_after_a_connection_lost_before_ready_is_the_servers_own() -> None:
    async def refuse(peer: Peer) -> None:
        await peer.receive()
        await peer.send(wire.Error(code="invalid_field", message="no such task", field="task"))
        await peer.socket.close(1008)

    async def run(url: str) -> None:
        async with connect(url, wire.Start()) as stream:
            with pytest.raises(RemoteError, match="no such task") as caught:
                await anext(aiter(stream))
            assert (caught.value.code, caught.value.field) == ("invalid_field", "task")

    with fake_server(hanging_up(1, refuse)) as server:
        asyncio.run(run(server.url))


def test_a_daemon_killed_before_it_is_ready_costs_nothing() -> None:
    """The daemon has taken the connection, and is gone before it says anything; the next one answers."""

    async def run(between: Relay, port: int) -> list[wire.ServerMessage]:
        loop = asyncio.get_running_loop()
        async with connect(f"ws://127.0.0.1:{between.port}", wire.Start(language="en")) as stream:
            await loop.run_in_executor(None, between.cut, port)
            incoming = aiter(stream)
            speaking = asyncio.create_task(speak(stream, AUDIO))
            messages = [message async for message in incoming]
            await speaking
            return messages

    with daemon() as running, socket.create_server(("127.0.0.1", 0)) as silent:
        expected = words(asyncio.run(converse(running.url)))
        accept = threading.Thread(target=upgrade, args=(silent,))
        accept.start()
        with relay(silent.getsockname()[1]) as between:
            messages = asyncio.run(run(between, running.port))
        accept.join(20)
    assert isinstance(messages[0], wire.Ready)
    assert words(messages) == expected


def upgrade(listener: socket.socket) -> None:
    """Answer one websocket handshake by hand, and then nothing."""
    taken, _ = listener.accept()
    with taken:
        head = b""
        while b"\r\n\r\n" not in head:
            head += taken.recv(4096)
        key = head.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        digest = hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        taken.sendall(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: whisper-stream.v1.msgpack\r\n"
            b"Sec-WebSocket-Accept: " + base64.b64encode(digest) + b"\r\n\r\n"
        )
        with contextlib.suppress(OSError):
            while taken.recv(4096):
                pass
