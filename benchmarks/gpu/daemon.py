"""The whole daemon on a GPU: sockets, voice detection, policy, engines; real speech at the pace of speech.

    python benchmarks/gpu/daemon.py --model large-v3-turbo --ingress 4 --streams 200 400
    python benchmarks/gpu/daemon.py --model base --engines 4 --ingress 8 --streams 1000 1500

A model whose weights are on this machine (a path, or installed) is run as it is, and ``wer`` says what it
understood. Of any other published model the weights are random: all its work is done, and a word for every
third of a second is said instead of what it found. Players run on the same machine. ``within`` is the share of updates
that were answered within half a second of being asked for; ``turnaround`` is read off the daemon's histogram,
so that within a bucket (0.1, 0.25, 0.5, 1 s) it is interpolated. ``cpu`` is the processors' time a second of each
kind of process, the busiest of its kind first; ``memory`` the host's and the GPU's, in MiB, at five moments of the
run. Prints a line a run and, last, one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

# What plays to the daemon is that of another folder; this one comes first, as both have a ``rig``.
sys.path.append(str(Path(__file__).resolve().parents[1] / "daemon"))

from ingress import ROOT, measure
from whisper_stream.clients.tools.scoring import count_letter_errors
from whisper_stream.model.weights.locate import locate
from whisper_stream.server.cluster import engine_process
from whisper_stream.server.cluster.engine_pool import EnginePool
from whisper_stream.server.cluster.ipc import StartEngine
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.daemon.main import main as serve
from whisper_stream.server.engine import Engine, load_engine
from whisper_stream.streamer.config import SAMPLE_RATE
from whisper_stream.streamer.engine.scheduler import QueuedJob
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

WORD_SECONDS = 0.33
ENGINE_COMMAND = (sys.executable, __file__, "engine")
HISTOGRAM = "whisper_stream_decode_seconds_bucket"
GOAL = 0.5  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


# The engine


def open_engine(config: ServerConfig, number: int = 0, count: int = 1) -> Engine:
    """The real one where the weights are here, else one of random weights that says words by the clock."""
    if locate(config.model).kind == "download":
        return scripted_engine(config, count)
    return load_engine(config, number, count)


def scripted_engine(config: ServerConfig, count: int) -> Engine:
    import torch
    from rig import random_model
    from scripted import ScriptedBackend
    from whisper_stream.streamer.engine import engine
    from whisper_stream.streamer.engine.gpu_backend import fitting_slots

    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)
    cuda = torch.cuda.is_available()
    kind, dtype = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
    model = random_model(config.model, dtype=dtype, device=kind)
    slots = fitting_slots(model, torch.cuda.mem_get_info()[0] // count) if cuda else 8
    vocabulary: list[int] = []

    def script(job: DecodeJob) -> list[int]:
        whole = int(len(job.audio) / SAMPLE_RATE / WORD_SECONDS)
        return vocabulary[min(len(job.prefix), whole) : whole]

    class Backend(ScriptedBackend):
        def _align(self) -> list[Any]:
            return [
                (entry, lambda outcome=outcome, entry=entry: _timed(outcome(), entry))
                for entry, outcome in super()._align()
            ]

    backend = Backend(model, slots=slots, script=script)
    vocabulary += _words(backend.tokenizer)
    backend.warm_up()
    return engine.Engine(
        [backend],
        backend.tokenizer,
        model_name=config.model,
        languages=backend.tokenizer.all_language_codes,
        clock=time.perf_counter,
        on_fatal=lambda: os._exit(os.EX_SOFTWARE),
    )


def _words(tokenizer: Any) -> list[int]:
    """Tokens that are words of their own, in an order that does not repeat itself."""
    chance = random.Random(0)
    tokens = [t for t in range(300, 5_000) if tokenizer.decode([t])[1:].isalpha()]
    tokens = [t for t in tokens if tokenizer.decode([t])[0] == " "]
    return chance.sample(tokens, 120)


def _timed(result: DecodeResult, entry: QueuedJob) -> DecodeResult:
    """Times by the clock: those of random weights would let no word be committed."""
    first = len(entry.job.prefix)
    words = tuple(
        replace(word, start=n * WORD_SECONDS, end=(n + 1) * WORD_SECONDS, attended=n * WORD_SECONDS)
        for n, word in enumerate(result.words, start=first)
    )
    return replace(result, words=words)


def run_daemon(flags: Sequence[str]) -> int:
    def engine(config: ServerConfig) -> Engine:
        if config.engines:
            return EnginePool(config, lambda: os._exit(os.EX_SOFTWARE), ENGINE_COMMAND)
        return open_engine(config)

    return serve(flags, engine)


def run_engine(flags: Sequence[str]) -> int:
    def engine(asked: StartEngine) -> Engine:
        return open_engine(asked.config, asked.number, asked.count)

    return engine_process.main(flags, engine)


# The load


@asynccontextmanager
async def daemon(options: argparse.Namespace) -> AsyncIterator[tuple[str, int]]:
    command = [sys.executable, __file__, "daemon", "--model", options.model, "--port", "0"]
    command += ["--announce", "--log-level", "error", "--max-load", "0", "--max-streams", "100000"]
    command += ["--ingress", str(options.ingress), "--engines", str(options.engines)]
    command += ["--update-interval", str(options.update_interval)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=PIPE, stdin=DEVNULL, cwd=ROOT, env=os.environ
    )
    try:
        assert process.stdout is not None
        yield json.loads(await process.stdout.readline())["url"], process.pid
    finally:
        process.terminate()
        await process.wait()


async def row_of(options: argparse.Namespace, url: str, pid: int, streams: int) -> dict[str, Any]:
    before, used = await asyncio.to_thread(read_histogram, url), cpu_times(pid)
    memory: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch_memory(url, memory))
    began = time.monotonic()
    row = await measure(options, url, streams, count_letter_errors)
    spent = time.monotonic() - began
    watching.cancel()
    after = await asyncio.to_thread(read_histogram, url)
    row["cpu"] = {
        kind: sorted(
            (round((seconds - used.get(kind, {}).get(one, 0.0)) / spent, 2))
            for one, seconds in processes.items()
        )[::-1]
        for kind, processes in cpu_times(pid).items()
    }
    row["memory"] = [memory[at * (len(memory) - 1) // 4] for at in range(5)] if memory else []
    counts = [(bound, count - before.get(bound, 0)) for bound, count in after.items()]
    total = counts[-1][1]
    within = next(count for bound, count in counts if bound >= GOAL)
    row["updates_per_s"] = round(total / spent, 1)
    row["within"] = round(within / total, 4)
    row["turnaround_p50"], row["turnaround_p95"] = quantile(counts, 0.5), quantile(counts, 0.95)
    return row


def cpu_times(daemon: int) -> dict[str, dict[int, float]]:
    """Processor seconds so far of the daemon's processes, by kind and number."""
    kinds: dict[str, dict[int, float]] = {}
    children = Path(f"/proc/{daemon}/task/{daemon}/children").read_text().split()
    for pid in (daemon, *map(int, children)):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        kind = "ingress" if b"ingress" in command.split(b"\0")[2] else "engine"
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks = int(fields[11]) + int(fields[12])
        kinds.setdefault("daemon" if pid == daemon else kind, {})[pid] = ticks / TICKS
    return kinds


async def watch_memory(url: str, seen: list[tuple[float, float]]) -> None:
    while True:
        health = await asyncio.to_thread(read, url, "/healthz")
        told = json.loads(health)
        gpu = told.get("gpu", {}).get("reserved_bytes", 0)
        seen.append((round(told["memory_bytes"] / 2**20), round(gpu / 2**20)))
        await asyncio.sleep(1.0)


def read(url: str, path: str) -> str:
    address = "http" + url.removeprefix("ws").rsplit("/v1", 1)[0] + path
    with urllib.request.urlopen(address, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def read_histogram(url: str) -> dict[float, int]:
    """Updates that were answered within so many seconds."""
    lines = read(url, "/metrics").splitlines()
    found = (line.split('"') for line in lines if line.startswith(HISTOGRAM))
    return {float(parts[1]): round(float(parts[2].split()[-1])) for parts in found}


def quantile(counts: Sequence[tuple[float, int]], share: float) -> float:
    """Interpolated between the bounds of a histogram's cumulated counts."""
    wanted = share * counts[-1][1]
    low = below = 0.0
    for bound, count in counts:
        if count >= wanted and count > below:
            high = min(bound, 64.0)
            return round(low + (high - low) * (wanted - below) / (count - below), 3)
        low, below = bound, count
    return low


async def run(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    began = time.monotonic()
    async with daemon(options) as (url, pid):
        ready = round(time.monotonic() - began, 1)
        for streams in options.streams:
            setup = {name: getattr(options, name) for name in ("model", "engines", "ingress")}
            row = {**setup, **await row_of(options, url, pid, streams), "ready_s": ready}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"benchmark": "gpu_daemon", "cores": os.cpu_count(), "rows": rows}


def main() -> int:
    match sys.argv[1:2]:
        case ["daemon"]:
            return run_daemon(sys.argv[2:])
        case ["engine"]:
            return run_engine(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="large-v3-turbo")
    parser.add_argument("--engines", type=int, default=0, help="engine processes")
    parser.add_argument("--ingress", type=int, default=4, help="ingress processes")
    parser.add_argument("--streams", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--seconds", type=float, default=25.0, help="that each stream speaks")
    parser.add_argument("--spread", type=float, default=5.0, help="streams begin within")
    parser.add_argument("--update-interval", type=float, default=1.0)
    parser.add_argument("--players", type=int, default=4, help="processes that play")
    parser.add_argument("--probes", type=int, default=2, help="streams that only ping")
    options = parser.parse_args()
    options.idle = False
    with tempfile.TemporaryDirectory() as options.folder:
        figures = asyncio.run(run(options))
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
