"""The client keeps a stream whole across dropped connections and killed daemons."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.backlog import Backlog
from whisper_stream.clients.cli import main
from whisper_stream.clients.errors import ConnectionLost, RemoteError
from whisper_stream.clients.stream import StreamConnection, connect
from whisper_stream.server import wire

from .fake_server import WORDS, Peer, Script, fake_server, talk
from .relay import Relay, relay
from .server_rig import Daemon, ScriptedEngine, daemon, speech
from .texts import SPEECH

AUDIO = speech(20.0, seed=5)


def words(messages: list[wire.ServerMessage]) -> list[wire.Word]:
    return [word for m in messages if isinstance(m, wire.Commit) for word in m.words]


class Cutter:
    """A proxy that drops each of its first connections after so many bytes, in mid-frame."""

    def __init__(self, port: int, limits: list[int]) -> None:
        self.port = port
        self.limits = limits
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # the server is not there, or the test is over
        finally:
            await _abort(writer)
            self.tasks.discard(task)

    def cut(self) -> None:
        for task in self.tasks:
            task.cancel()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = [self.limits.pop(0) if self.limits else 1 << 60]
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(8192)):
                sink.write(data[: left[0]])
                left[0] -= len(data)
                await sink.drain()

        pumps = [
            asyncio.create_task(pump(reader, far_writer)),
            asyncio.create_task(pump(far_reader, writer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in pumps:
                each.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            await _abort(far_writer)


async def _abort(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def cutter(port: int, limits: list[int]) -> AsyncIterator[tuple[Cutter, str]]:
    proxy = Cutter(port, limits)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in list(proxy.tasks):
            task.cancel()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)


async def speak(stream: StreamConnection, audio: bytes, pause: float = 0.0) -> None:
    for at in range(0, len(audio), 6_401):
        await stream.send_audio(audio[at : at + 6_401])
        await asyncio.sleep(pause)
    await stream.flush("last")
    await stream.eos()


async def converse(url: str, audio: bytes = AUDIO, pause: float = 0.0) -> list[wire.ServerMessage]:
    async with connect(url, wire.Start(language="en")) as stream:
        incoming = aiter(stream)
        messages = [await anext(incoming)]
        speaking = asyncio.create_task(speak(stream, audio, pause))
        messages += [message async for message in incoming]
        await speaking
        return messages


@pytest.mark.parametrize("seed", range(3))
def test_cut_at_any_byte_nothing_is_lost_or_doubled(seed: int) -> None:
    chance = random.Random(seed)
    limits = [chance.randrange(3_000, 150_000) for _ in range(8)]

    async def run(port: int) -> tuple[int, list[wire.ServerMessage]]:
        async with cutter(port, limits) as (proxy, url):
            return proxy.connections, await converse(url)

    with daemon() as running:
        expected = words(asyncio.run(converse(running.url)))
        messages = asyncio.run(run(running.port))[1]
    assert words(messages) == expected and len(expected) == 40
    assert sum(isinstance(m, wire.Resumed) for m in messages) >= 3
    flushed = [m for m in messages if isinstance(m, wire.Flushed)]
    assert [m.id for m in flushed] == ["last"]
    done = messages[-1]
    assert isinstance(done, wire.Done) and done.samples == len(AUDIO) // 2


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
        async with connect(url, wire.Start(language="en")) as stream:
            stream.on_lost = lambda: lost.append(True)
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


def test_a_server_that_stays_away_is_given_up() -> None:
    async def run(port: int) -> None:
        async with cutter(port, [3_000]) as (proxy, url):
            async with connect(url, wire.Start(), reconnect_seconds=0.2) as stream:
                messages = aiter(stream)
                assert isinstance(await anext(messages), wire.Ready)
                proxy.port = 1  # nobody listens there
                await stream.send_audio(AUDIO)  # kept, while there is hope
                with pytest.raises(ConnectionLost, match="was lost before"):
                    while True:
                        await anext(messages)
                with pytest.raises(ConnectionLost):
                    await stream.send_audio(AUDIO)

    with daemon() as running:
        asyncio.run(run(running.port))


def test_a_command_tells_that_it_reconnects(capsys: pytest.CaptureFixture[str]) -> None:
    relays: list[Relay] = []

    def cut_once(job: object) -> None:
        if engine.jobs == 2:
            relays[0].cut(relays[0].target)

    engine = ScriptedEngine(spoil=cut_once, word_text=lambda job: " word")
    with daemon(engine) as running, relay(running.port) as between:
        relays.append(between)
        url = f"ws://127.0.0.1:{between.port}"
        assert main([str(SPEECH), "--server", url, "--speed", "8"]) == 0
    told = capsys.readouterr()
    assert told.out.count("word") == 22
    assert "the connection was lost; reconnecting" in told.err and "reconnected" in told.err


def test_a_session_that_has_expired_goes_on_in_a_new_one() -> None:
    async def run(port: int) -> list[wire.ServerMessage]:
        async with cutter(port, [200_000]) as (_, url):
            return await converse(url)

    with daemon() as running:
        expected = asyncio.run(converse(running.url))
    with daemon(resume_seconds=0.001) as running:
        messages = asyncio.run(run(running.port))
    check_whole(messages, expected)


def test_a_container_that_was_forgotten_is_lost() -> None:
    async def run(first: int, second: int) -> None:
        start = wire.Start(encoding="wav")
        async with cutter(first, [40_000]) as (proxy, url), connect(url, start) as stream:
            incoming = aiter(stream)
            await anext(incoming)
            proxy.port = second  # where nobody has heard of it
            with pytest.raises(ConnectionLost, match="too long"):
                await stream.send_audio(SPEECH.read_bytes())
                async for _ in incoming:
                    pass

    with daemon() as first, daemon() as second:
        asyncio.run(run(first.port, second.port))


@pytest.mark.parametrize("stops", [False, True])
def test_a_daemon_without_a_journal_is_replaced_and_no_word_is_lost(stops: bool) -> None:
    """It is gone at once, or finishes its streams as it stops; another one knows nothing."""

    async def run(first: Daemon, second: Daemon) -> list[wire.ServerMessage]:
        async with cutter(first.port, []) as (proxy, url):
            async with connect(url, wire.Start(language="en")) as stream:
                incoming = aiter(stream)
                messages = [await anext(incoming)]
                speaking = asyncio.create_task(speak(stream, AUDIO, 0.005))
                while len(words(messages)) < 10:
                    messages.append(await anext(incoming))
                proxy.port = second.port
                if stops:
                    first.stop()
                else:
                    proxy.cut()
                messages += [message async for message in incoming]
                await speaking
                return messages

    with daemon() as first, daemon() as second:
        expected = asyncio.run(converse(second.url))
        messages = asyncio.run(run(first, second))
    check_whole(messages, expected, cut_words=True)  # where depends on when it was cut


def check_whole(
    messages: list[wire.ServerMessage],
    expected: list[wire.ServerMessage],
    *,
    cut_words: bool = False,
) -> None:
    """Restarted once, and otherwise as it would have been; ``cut_words``: but for where they are cut."""
    assert sum(isinstance(message, wire.Ready) for message in messages) == 1
    assert sum(isinstance(message, wire.Resumed) for message in messages) == 1
    heard = words(messages)
    if cut_words:
        assert heard[:10] == words(expected)[:10] and heard[-1].end == 20.0
        assert [word.start for word in heard] == [0.0, *(word.end for word in heard[:-1])]
    else:
        assert heard == words(expected)
    assert [word for m in messages if isinstance(m, wire.Segment) for word in m.words] == heard
    assert [m.id for m in messages if isinstance(m, wire.Flushed)] == ["last"]
    done, planned = messages[-1], expected[-1]
    assert isinstance(done, wire.Done) and isinstance(planned, wire.Done)
    assert (done.duration, done.samples) == (planned.duration, planned.samples)
    assert done.words == len(heard)


PROGRAM = (
    "import sys; from tests.server_rig import ScriptedEngine; "
    "from whisper_stream.server.main import main; "
    "sys.exit(main(sys.argv[1:], lambda config: ScriptedEngine()))"
)


async def start(port: int, journal: Path) -> asyncio.subprocess.Process:
    flags = ["--port", str(port), "--journal", str(journal), "--announce"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert await process.stdout.readline()
    return process


def test_a_killed_daemon_goes_on_in_the_next(tmp_path: Path) -> None:
    """``kill -9`` in mid-sentence, three times in one stream."""

    async def run(port: int) -> list[wire.ServerMessage]:
        process = await start(port, tmp_path / "journal")
        async with connect(f"ws://127.0.0.1:{port}", wire.Start(language="en")) as stream:
            # Each part says more words than the next kill waits for; the one after it comes when a new
            # daemon is there. So every kill finds a stream that is not over, however slow the machine is.
            parts = [AUDIO[at : at + 128_000] for at in range(0, len(AUDIO), 128_000)]
            restarted = asyncio.Semaphore(1)

            async def speak_in_parts() -> None:
                for part in parts[:3]:
                    await restarted.acquire()
                    await stream.send_audio(part)
                await restarted.acquire()
                await speak(stream, b"".join(parts[3:]))

            speaking = asyncio.create_task(speak_in_parts())
            messages: list[wire.ServerMessage] = []
            kills = [4, 12, 20]
            async for message in stream:
                messages.append(message)
                if kills and len(words(messages)) >= kills[0]:
                    kills.pop(0)
                    process.send_signal(signal.SIGKILL)
                    await process.wait()
                    process = await start(port, tmp_path / "journal")
                    restarted.release()
            await speaking
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        return messages

    with daemon() as running:
        port = running.port
        expected = words(asyncio.run(converse(running.url)))
    messages = asyncio.run(run(port))
    assert words(messages) == expected
    assert sum(isinstance(m, wire.Resumed) for m in messages) == 3


@given(st.data())
def test_the_backlog_repeats_exactly_what_is_not_held(data: st.DataObject) -> None:
    """Against a model: the server takes a prefix of all that was said, cut anywhere in audio."""
    backlog, said = Backlog(), bytearray()
    marks: list[tuple[int, str]] = []  # position in the audio, id
    taken, controls = 0, 0
    for step in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["audio", "flush", "send", "ack", "cut"])):
            case "audio":
                piece = data.draw(st.binary(max_size=9))
                said += piece
                backlog.add(wire.Audio(data=piece))
            case "flush":
                marks.append((len(said), str(step)))
                backlog.add(wire.Flush(id=str(step)))
            case "send" if not backlog.all_sent:
                message = backlog.next()
                backlog.sent()
                if isinstance(message, wire.Audio):
                    assert said[taken : taken + len(message.data)] == message.data
                    taken += len(message.data)
                else:
                    assert message == wire.Flush(id=marks[controls][1])
                    assert marks[controls][0] == taken
                    controls += 1
            case "ack":
                backlog.held(taken, controls)
            case "cut":
                # of the last audio, some may not have arrived
                floor = marks[controls - 1][0] if controls else 0
                lost = data.draw(st.integers(0, min(3, taken - max(floor, taken - 3))))
                taken -= lost if backlog.size >= len(said) - taken + lost else 0
                backlog.rewind(taken, controls)
    while not backlog.all_sent:
        message = backlog.next()
        backlog.sent()
        if isinstance(message, wire.Audio):
            assert said[taken : taken + len(message.data)] == message.data
            taken += len(message.data)
        else:
            controls += 1
    assert taken == len(said) and controls == len(marks)
    backlog.held(taken, controls)
    assert backlog.size == 0
