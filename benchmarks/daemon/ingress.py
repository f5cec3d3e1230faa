"""How many live streams one process carries, and what ingress processes change.

A daemon with a scripted engine, which takes ``--latency`` seconds for an answer and no processor time:
what is measured is everything else. Real speech is played at its pace on real sockets. For each number of
ingress processes and of streams: processor seconds of the daemon for each second of a stream, the delay
of commits, and how long the event loops take to answer a ping. ``turn_ns`` is the time of a turn of an empty
loop meanwhile: on a shared machine all processor times grow with it. ``--profile`` plays to one process
and says which parts its time goes to.

    python benchmarks/daemon/ingress.py --ingress 0 1 2 --streams 25 50 100
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import wave
from asyncio.subprocess import DEVNULL, PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import asynccontextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from whisper_stream.clients.tools.clips import Clip, choose_language, read_clips, read_durations
from whisper_stream.clients.tools.load_plan import make_plans
from whisper_stream.clients.tools.load_run import run_load
from whisper_stream.clients.tools.load_worker import open_connection
from whisper_stream.clients.tools.report import load_figures, percentile
from whisper_stream.clients.tools.scoring import ErrorCount
from whisper_stream.model.whisper.tokenizer import get_tokenizer
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.daemon.main import main as serve
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import codec_for
from whisper_stream.streamer.audio.vad import make_detector
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.engine.engine import EngineStatistics
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession

ROOT = Path(__file__).parents[2]
WORD_SECONDS = 0.35
PINGS = 5  # a second
TURNS = 100_000


class ScriptedEngine:
    """A word for every third of a second of a window; answers come ``latency`` seconds after the asking."""

    model_name = "scripted"
    languages = ("en",)

    def __init__(self, latency: float) -> None:
        self._latency = latency
        self._codec = get_tokenizer(True, num_languages=99)
        self._condition = threading.Condition()
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, DecodeJob, Future[DecodeResult]]] = []
        self._done = 0
        threading.Thread(target=self._run, daemon=True).start()

    def new_session(self, config: StreamConfig) -> StreamSession:
        return StreamSession(config, make_detector(config.detector), self._codec)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        future: Future[DecodeResult] = Future()
        due = time.monotonic() + self._latency
        with self._condition:
            heapq.heappush(self._due, (due, next(self._numbers), job, future))
            self._condition.notify()
        return future

    def statistics(self) -> EngineStatistics:
        idle = dict.fromkeys(EngineStatistics._fields, 0)
        return EngineStatistics(**{**idle, "done": self._done, "processes": 1})

    def close(self) -> None:
        """Nothing to end."""

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._due or self._due[0][0] > time.monotonic():
                    wait = self._due[0][0] - time.monotonic() if self._due else None
                    self._condition.wait(wait)
                _, _, job, future = heapq.heappop(self._due)
            self._done += 1
            if future.set_running_or_notify_cancel():
                future.set_result(_answer(job))


def _answer(job: DecodeJob) -> DecodeResult:
    count = int(len(job.audio) / SAMPLE_RATE / WORD_SECONDS)
    numbers = range(min(len(job.prefix), count), count)
    words = tuple(
        DecodedWord(
            text=f" w{number}",
            tokens=(1000 + number,),
            start=number * WORD_SECONDS,
            end=(number + 1) * WORD_SECONDS,
            probability=0.9,
        )
        for number in numbers
    )
    tokens = tuple(token for word in words for token in word.tokens)
    return DecodeResult(tokens=tokens, words=words, language="en", avg_logprob=-0.2)


def run_daemon(flags: list[str]) -> int:
    """``daemon LATENCY PROFILE FLAG…``: PROFILE is a file, or - for none."""
    latency, path, *rest = flags

    def engine(config: ServerConfig) -> Any:
        if path != "-":
            sampled.begin()
        return ScriptedEngine(float(latency))

    sampled = Sampled()
    try:
        return serve(rest, engine)
    finally:
        if path != "-":
            Path(path).write_text(json.dumps(sampled.end()))


@asynccontextmanager
async def daemon(ingress: int, latency: float, profile: str = "-") -> AsyncIterator[str]:
    command = [sys.executable, __file__, "daemon", str(latency), profile, "--port", "0"]
    command += ["--announce", "--log-level", "error", "--max-load", "0", "--max-streams", "100000"]
    process = await asyncio.create_subprocess_exec(
        *command, "--ingress", str(ingress), stdout=PIPE, stdin=DEVNULL, cwd=ROOT, env=os.environ
    )
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["url"]
    finally:
        process.terminate()
        await process.wait()


async def measure(
    options: argparse.Namespace,
    url: str,
    streams: int,
    score: Callable[..., ErrorCount | None] = lambda references, text, language: None,
) -> dict[str, Any]:
    clips = [_quiet(options)] if options.idle else _speech()
    plans = make_plans(clips, streams, seconds=options.seconds, spread=options.spread, seed=0)
    pings: list[float] = []
    probes = [asyncio.create_task(_probe(url, pings)) for _ in range(options.probes)]
    turns: list[float] = []
    probes.append(asyncio.create_task(_pace(turns)))
    run = await run_load(url, plans, options.players)
    for probe in probes:
        probe.cancel()
    await asyncio.gather(*probes, return_exceptions=True)
    figures = load_figures(run, score)
    kept = (
        "streams",
        "audio_seconds",
        "commit_p50",
        "commit_p95",
        "commit_p99",
        "late_max",
        "failed",
        "refused",
        "lag_max",
        "wer",
    )
    row: dict[str, Any] = {name: figures[name] for name in kept}
    cost = figures["cpu_per_audio_second"]
    row["cpu_per_stream"] = cost
    row["streams_per_core"] = round(1 / cost) if cost else None
    row["memory_per_stream"] = figures["memory_per_stream"]
    row["gpu_memory"] = figures["gpu_memory"]
    row["player_cpu_per_stream"] = figures["player_cpu_per_audio_second"]
    row["turn_ns"] = round(1e9 * (percentile(turns, 50) or 0.0), 1)
    row["ping_p50"] = _rounded(percentile(pings, 50))
    row["ping_p99"] = _rounded(percentile(pings, 99))
    return row


def _speech() -> list[Clip]:
    return read_durations(choose_language(read_clips([ROOT / "tests" / "data"]), "en"))


def _quiet(options: argparse.Namespace) -> Clip:
    """A room in which nobody speaks."""
    chance = np.random.default_rng(0)
    samples = chance.normal(0.0, 3.0, round(options.seconds * SAMPLE_RATE)).round().astype("<i2")
    path = Path(options.folder) / "room.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(samples.tobytes())
    return Clip(path=str(path), seconds=options.seconds, language="en")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


async def _pace(turns: list[float]) -> None:
    """Processor seconds of a turn of an empty loop: how slow the processor is while others use it too."""
    while True:
        started = time.thread_time()
        for _ in range(TURNS):
            pass
        turns.append((time.thread_time() - started) / TURNS)
        await asyncio.sleep(0.5)


async def _probe(url: str, pings: list[float]) -> None:
    """A stream that says nothing, and asks again and again whether anybody is there."""
    codec = codec_for(wire.MSGPACK_SUBPROTOCOL)
    clock = asyncio.get_running_loop().time
    async with open_connection(url, wire.Start(language="en"), None) as line:
        while not isinstance(codec.decode_server(await line.socket.recv()), wire.Ready):
            pass
        while True:
            asked = clock()
            await line.send(codec.encode(wire.Ping(id="probe")))
            while not isinstance(codec.decode_server(await line.socket.recv()), wire.Pong):
                pass
            pings.append(clock() - asked)
            await asyncio.sleep(1 / PINGS)


async def profiled(options: argparse.Namespace) -> dict[str, Any]:
    path = str(Path(options.folder) / "profile")
    async with daemon(0, options.latency, path) as url:
        row = await measure(options, url, options.streams[0])
    seconds = row["audio_seconds"]
    costly = read_profile(path)
    for line, spent in itertools.islice(costly.items(), options.functions):
        print(f"{1e6 * spent / seconds:8.1f} us a second  {line}")
    return {"parts": parts_of(costly, seconds), **row}


async def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.profile:
        return {"benchmark": "ingress", "passed": True, "profile": await profiled(options)}
    rows = []
    for ingress in options.ingress:
        for streams in options.streams:
            async with daemon(ingress, options.latency) as url:
                row = {"ingress": ingress, **await measure(options, url, streams)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    passed = all(not row["failed"] and not row["refused"] for row in rows)
    return {"benchmark": "ingress", "passed": passed, "cores": os.cpu_count(), "rows": rows}


def main() -> int:
    if sys.argv[1:2] == ["daemon"]:
        return run_daemon(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ingress", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--streams", type=int, nargs="+", default=[25, 50, 100])
    parser.add_argument("--seconds", type=float, default=15.0, help="that each stream speaks")
    parser.add_argument("--latency", type=float, default=0.15, help="seconds of the engine")
    parser.add_argument("--spread", type=float, default=2.0, help="streams begin within")
    parser.add_argument("--players", type=int, default=2, help="processes that play")
    parser.add_argument("--probes", type=int, default=4, help="streams that only ping")
    parser.add_argument(
        "--profile", action="store_true", help="of one process, with the first --streams"
    )
    parser.add_argument(
        "--functions", type=int, default=0, help="with --profile: the costliest ones"
    )
    parser.add_argument("--idle", action="store_true", help="nobody speaks in any stream")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as options.folder:
        figures = asyncio.run(run(options))
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


# Where the daemon's processor time goes

SAMPLE_SECONDS = 0.002  # between two looks of the profile

# Which part of the daemon a function belongs to, by where its file lies; the first that fits.
PARTS = (
    ("vad", ("streamer/audio/vad.py", "webrtcvad")),
    ("session", ("streamer/",)),
    ("stream", ("server/stream/",)),
    ("messages", ("server/protocol/",)),
    ("connection", ("server/",)),
    ("sockets", ("uvicorn", "websockets", "starlette", "asyncio", "selectors", "ssl.py")),
)


class Sampled:
    """Looks every few milliseconds of processor time where the main thread is."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.process_time()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def end(self) -> dict[str, float]:
        """Processor seconds by file and function."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        each = (time.process_time() - self._began) / max(1, self._lines.total())
        return {line: count * each for line, count in self._lines.most_common()}

    def _look(self, number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._lines[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1


def read_profile(path: str) -> dict[str, float]:
    lines: dict[str, float] = json.loads(Path(path).read_text())
    return lines


def parts_of(lines: dict[str, float], stream_seconds: float) -> dict[str, float]:
    """Processor seconds for each second of a stream, by part; C functions count to their callers."""
    spent: Counter[str] = Counter()
    for line, seconds in lines.items():
        spent[_part(line)] += seconds / stream_seconds
    return {part: round(share, 6) for part, share in spent.most_common()}


def _part(file: str) -> str:
    return next((part for part, marks in PARTS if any(m in file for m in marks)), "other")


if __name__ == "__main__":
    sys.exit(main())
