"""The websocket client against a server without a model, and what importing the clients loads."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable

import pytest
from whisper_stream.clients.errors import (
    ConnectError,
    ConnectionLost,
    RemoteError,
    StreamError,
    UsageError,
)
from whisper_stream.clients.sdk.connection import ReconnectingStream, connect, stream_url
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import Peer, fake_server, talk


async def converse(
    url: str, pcm: bytes = b"", subprotocol: str = wire.MSGPACK_SUBPROTOCOL
) -> list[wire.ServerMessage]:
    async with connect(url, wire.Start(language="en"), subprotocol=subprotocol) as stream:
        await stream.send_audio(pcm)
        await stream.flush("f1")
        await stream.eos()
        return [message async for message in stream]


@pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)
def test_a_stream_in_each_subprotocol(subprotocol: str) -> None:
    pcm = bytes(range(256)) * 10_000  # more than one frame's worth
    with fake_server() as server:
        messages = asyncio.run(converse(server.url, pcm, subprotocol))
    assert server.paths == [wire.STREAM_PATH]
    assert server.peers[0].audio == pcm
    assert server.peers[0].received == [
        wire.Start(language="en", resume=True),
        wire.Flush(id="f1"),
        wire.Eos(),
    ]
    kinds = [type(message) for message in messages if not isinstance(message, wire.Ack)]
    assert kinds == [
        wire.Ready,
        wire.Partial,
        wire.Commit,
        wire.Segment,
        wire.Commit,
        wire.Segment,
        wire.Done,
    ]
    assert messages[-1] == wire.Done(duration=80.0, samples=1_280_000, words=3)


@pytest.mark.parametrize(
    ("url", "complete"),
    [
        ("ws://host:9090", "ws://host:9090/v1/stream"),
        ("wss://host/", "wss://host/v1/stream"),
        ("ws://host/other", "ws://host/other"),
        ("ws://[::1]:9090?key=a", "ws://[::1]:9090/v1/stream?key=a"),
    ],
)
def test_an_address_without_a_path_gets_it(url: str, complete: str) -> None:
    assert stream_url(url) == complete


@pytest.mark.parametrize(
    "url", ["", "host:9090", "http://host", "ws://", "ws://host:port", "ws://host:0", "ws://[::1"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="write it like ws://host:9090"):
        stream_url(url)


def test_nobody_listens() -> None:
    with fake_server() as server:
        url = server.url
    with pytest.raises(ConnectError, match="connection refused.*whisper-stream serve"):
        asyncio.run(converse(url))


def test_unknown_host() -> None:
    with pytest.raises(ConnectError, match="cannot be reached"):
        asyncio.run(converse("ws://nowhere.invalid:9090"))


@pytest.mark.parametrize(
    ("subprotocols", "reason"),
    [
        ((), r"does not speak whisper-stream\.v1\.msgpack"),
        (("other.v1",), r"no whisper-stream address \(HTTP 400\)"),
    ],
)
def test_a_websocket_server_that_is_not_ours(subprotocols: tuple[str, ...], reason: str) -> None:
    with (
        fake_server(subprotocols=subprotocols) as server,
        pytest.raises(ConnectError, match=reason),
    ):
        asyncio.run(converse(server.url))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "no whisper-stream address"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "no more streams now"),
        (b"HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n", "wants a key"),
        (b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", "refused access"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "no websocket server"),
        (b"", "no websocket server"),
    ],
)
def test_a_server_that_speaks_no_websocket(answer: bytes, reason: str) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def run() -> None:
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(ConnectError, match=reason):
                await converse(f"ws://127.0.0.1:{port}")

    asyncio.run(run())


async def fatal(peer: Peer) -> None:
    await peer.ready()
    await peer.send(wire.Error(code="invalid_field", message="no such language", field="language"))
    await peer.socket.close(1008, "language")


async def vanish(peer: Peer) -> None:
    await peer.ready()
    peer.socket.transport.abort()


async def restart(peer: Peer) -> None:
    await peer.ready()
    await peer.socket.close(1012, "restarting")


async def babble(peer: Peer) -> None:
    await peer.ready()
    await peer.socket.send(b"\xc1")


@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (fatal, RemoteError, "no such language"),
        (vanish, ConnectionLost, "was lost before the stream was done"),
        (restart, ConnectionLost, "code 1012, restarting"),
        (babble, StreamError, "broke the protocol"),
    ],
)
def test_how_a_stream_may_fail(
    script: Callable[[Peer], asyncio.Future[None]], error: type[StreamError], text: str
) -> None:
    seen: list[wire.ServerMessage] = []

    async def listen(url: str) -> None:
        async with connect(url, wire.Start()) as stream:
            messages = aiter(stream)
            while True:
                seen.append(await anext(messages))

    with fake_server(script) as server, pytest.raises(error, match=text):
        asyncio.run(listen(server.url))
    assert isinstance(seen[0], wire.Ready)
    assert isinstance(seen[-1], wire.Error) == (error is RemoteError)


def test_sending_on_a_lost_connection_says_so() -> None:
    async def send(stream: ReconnectingStream) -> None:
        while True:
            await stream.send_audio(bytes(32_000))

    async def run(url: str) -> None:
        async with connect(url, wire.Start()) as stream:
            await send(stream)

    with fake_server(vanish) as server, pytest.raises(ConnectionLost, match="was lost"):
        asyncio.run(run(server.url))


def test_messages_of_a_later_version_are_passed_over() -> None:
    async def later(peer: Peer) -> None:
        await peer.socket.send('{"type": "weather", "seq": 9}')
        await talk(peer)

    with fake_server(later) as server:
        messages = asyncio.run(converse(server.url, subprotocol=wire.JSON_SUBPROTOCOL))
    assert isinstance(messages[0], wire.Ready)
    assert isinstance(messages[-1], wire.Done)


def test_the_command_line_itself_loads_little() -> None:
    program = (
        "import sys, whisper_stream.clients.cli.main\n"
        "slow = ('av', 'numpy', 'rich', 'websockets', 'asyncio', 'msgspec')\n"
        "print([name for name in slow if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
