"""What the benchmarks of the daemon share: a daemon to kill, a wire to cut, and the words of a stream."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
from whisper_stream.clients.sdk.connection import ReconnectingStream, connect
from whisper_stream.model.media.audio import load_audio
from whisper_stream.server.protocol import messages as wire

ROOT = Path(__file__).parents[2]
SPEECH = ROOT / "tests" / "data" / "en-speech-jfk.wav"
SAMPLE_RATE = 16_000
# A daemon whose "model" names each half second by its samples: exact, and as fast as the disk.
_SCRIPTED = (
    "import sys; from collections import deque; from tests.helpers.server_rig import ScriptedEngine; "
    "from whisper_stream.server.daemon.main import main; "
    "engine = ScriptedEngine(sessions=deque(maxlen=1)); "  # the tests' own keeps them all
    "sys.exit(main(sys.argv[1:], lambda config: engine))"
)


class Daemon:
    """A daemon in a process of its own, on a port that stays the same."""

    def __init__(
        self, model: str, *flags: str, log: Path | None = None, program: str | None = None
    ) -> None:
        """``model``: a model's name, or ``scripted``; ``log``: a file for what it logs; ``program``: Python
        that serves instead."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        served = ["-c", _SCRIPTED] if model == "scripted" else ["-m", "whisper_stream.server"]
        served = served if program is None else ["-c", program]
        named = [] if model == "scripted" else ["--model", model]
        common = ["--port", str(self.port), "--announce", "--log-level", "error"]
        self.command = [sys.executable, *served, *common, *named, *flags]
        self._log = log
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        with contextlib.ExitStack() as opened:
            stderr = DEVNULL if self._log is None else opened.enter_context(self._log.open("ab"))
            self._process = await asyncio.create_subprocess_exec(
                *self.command, stdout=PIPE, stderr=stderr, cwd=ROOT, env=os.environ
            )
        assert self._process.stdout is not None
        if not await self._process.stdout.readline():
            raise RuntimeError("the daemon did not start")

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.alive:
            assert self._process is not None
            self.send(number)
            await self._process.wait()


@asynccontextmanager
async def running(
    model: str, *flags: str, log: Path | None = None, program: str | None = None
) -> AsyncIterator[Daemon]:
    daemon = Daemon(model, *flags, log=log, program=program)
    await daemon.start()
    try:
        yield daemon
    finally:
        await daemon.end()


class Cable:
    """A TCP proxy whose connections can be cut, as a network would: without a word."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.add(far_writer)
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        except OSError:
            pass  # cut, or nobody there
        finally:
            for each in self._writers:
                each.transport.abort()
            self._writers.clear()
            self._tasks.discard(task)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(8192):
        sink.write(data)
        await sink.drain()
    sink.close()


async def speak(stream: ReconnectingStream, pcm: bytes, speed: float) -> None:
    """Send 16 kHz s16le in pieces of 100 ms, ``speed`` times as fast as it was spoken; 0: at once."""
    loop = asyncio.get_running_loop()
    started, step = loop.time(), SAMPLE_RATE // 10 * 2
    for at in range(0, len(pcm), step):
        await stream.send_audio(pcm[at : at + step])
        if speed:
            due = started + (at + step) / 2 / SAMPLE_RATE / speed
            await asyncio.sleep(max(0.0, due - loop.time()))
    await stream.eos()


async def listen(stream: ReconnectingStream, speaking: Coroutine[object, object, None]) -> None:
    """Take every message of a stream; ``speaking`` goes on meanwhile, and no longer."""
    task = asyncio.create_task(speaking)
    try:
        async for _ in stream:
            pass
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def converse(
    url: str,
    pcm: bytes,
    speed: float,
    on_message: Callable[[wire.ServerMessage], None] = lambda message: None,
) -> list[wire.Word]:
    """The words that one stream commits."""
    words: list[wire.Word] = []
    async with connect(url, wire.Start(language="en"), reconnect_seconds=120) as stream:
        incoming = aiter(stream)
        on_message(await anext(incoming))
        speaking = asyncio.create_task(speak(stream, pcm, speed))
        try:
            async for message in incoming:
                if isinstance(message, wire.Commit):
                    words += message.words
                on_message(message)
            await speaking
        finally:
            await asyncio.gather(speaking, return_exceptions=True)
    return words


def speech(path: Path = SPEECH, seconds: float | None = None) -> bytes:
    """A recording as 16 kHz s16le."""
    samples = load_audio(path)[: None if seconds is None else round(seconds * SAMPLE_RATE)]
    pcm: bytes = np.round(samples * 32767).astype("<i2").tobytes()
    return pcm


def parser(text: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", default="tiny.en", help="a model, or scripted: none at all")
    made.add_argument("--seed", type=int, default=0)
    return made


def report(figures: dict[str, object]) -> int:
    """Print the figures as one JSON object, last; the exit code says whether all is well."""
    sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
    return 0 if figures.get("passed") else 1
