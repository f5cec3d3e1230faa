"""The client keeps a stream whole across dropped connections and killed daemons."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.errors import ConnectionLost
from whisper_stream.clients.sdk.connection import connect
from whisper_stream.server.protocol import messages as wire

from ...helpers.reconnect_rig import AUDIO, converse, cutter, speak, words
from ...helpers.relay import Relay, relay
from ...helpers.server_rig import Daemon, ScriptedEngine, daemon
from ...helpers.texts import SPEECH


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
    "import sys; from tests.helpers.server_rig import ScriptedEngine; "
    "from whisper_stream.server.daemon.main import main; "
    "sys.exit(main(sys.argv[1:], lambda config: ScriptedEngine()))"
)


async def start(port: int, journal: Path) -> asyncio.subprocess.Process:
    flags = ["--port", str(port), "--journal", str(journal), "--announce"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[3],
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
