"""Hours of streams through one daemon: its memory, threads and descriptors must not grow.

    python benchmarks/daemon/soak.py                        # 8 hours of audio, without a model
    python benchmarks/daemon/soak.py --model tiny.en --hours 8
    python benchmarks/daemon/soak.py --hours 0.05 --picture soak.png

Streams of random length run side by side as fast as the daemon takes them; some end well, some drop
their connection, some vanish. Hours are those of audio. Prints one JSON object last.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import urllib.request
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rig import SAMPLE_RATE, Daemon, listen, parser, report, running, speak, speech
from whisper_stream.clients.errors import ClientError
from whisper_stream.clients.sdk.connection import connect
from whisper_stream.server.protocol import messages as wire

MOST_SLOPE = 1.0  # MiB an hour
WARM_UP = 0.25  # share of the run that is not judged


@dataclass(frozen=True, slots=True)
class Sample:
    hours: float  # of audio so far
    rss: float  # MiB
    threads: int
    descriptors: int


def look(daemon: Daemon, hours: float) -> Sample:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return Sample(
        hours,
        int(fields["VmRSS"].split()[0]) / 1024,
        int(fields["Threads"]),
        len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())),
    )


def health(daemon: Daemon) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}/healthz") as answer:
        body: dict[str, object] = json.load(answer)
    return body


class Soak:
    def __init__(self, daemon: Daemon, args: Namespace) -> None:
        self._daemon = daemon
        self._args = args
        self._chance = random.Random(args.seed)
        self._pcm = speech()
        self._sent = 0  # samples of audio
        self.sessions = 0
        self.samples: list[Sample] = []

    @property
    def hours(self) -> float:
        return self._sent / SAMPLE_RATE / 3600

    async def run(self) -> None:
        workers = [asyncio.create_task(self._worker()) for _ in range(self._args.streams)]
        step = self._args.hours / 200
        while not all(worker.done() for worker in workers):
            if not self.samples or self.hours - self.samples[-1].hours >= step:
                self.samples.append(look(self._daemon, self.hours))
            await asyncio.sleep(0.05)
        await asyncio.gather(*workers)

    async def _worker(self) -> None:
        url = f"ws://127.0.0.1:{self._daemon.port}"
        while self.hours < self._args.hours:
            seconds = self._chance.choice([2, 10, 60, 300])
            repeats = -(-seconds * SAMPLE_RATE * 2 // len(self._pcm))
            pcm = (self._pcm * repeats)[: seconds * SAMPLE_RATE * 2]
            end = self._chance.choice(["done", "done", "done", "vanish", "mistake"])
            # a refused stream, after a mistake, is meant to end in an error
            with contextlib.suppress(ClientError):
                start = wire.Start(language="en" if end != "mistake" else "xx")
                async with connect(url, start, reconnect_seconds=end == "done") as stream:
                    if end == "vanish":
                        await stream.send_audio(pcm[: len(pcm) // 2])
                    else:
                        await listen(stream, speak(stream, pcm, 0))
            self._sent += len(pcm) // 2
            self.sessions += 1


def slope(samples: list[Sample]) -> float:
    """MiB an hour after warm-up."""
    settled = [s for s in samples if s.hours >= WARM_UP * samples[-1].hours]
    if len(settled) < 3:
        return 0.0
    hours, rss = [s.hours for s in settled], [s.rss for s in settled]
    return float(np.polyfit(hours, rss, 1)[0])


def draw(samples: list[Sample], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4))
    axes = figure.add_subplot()
    axes.plot([s.hours for s in samples], [s.rss for s in samples])
    axes.set(xlabel="hours of audio", ylabel="resident memory, MiB", ylim=(0, None))
    figure.savefig(path, bbox_inches="tight")


async def measure(args: Namespace) -> dict[str, object]:
    flags = ["--resume-seconds", "1", "--retain-seconds", "1", "--max-load", "0"]
    async with running(args.model, *flags) as daemon:
        before = look(daemon, 0.0)
        soak = Soak(daemon, args)
        await soak.run()
        for _ in range(200):  # streams that nobody resumes end by themselves
            if health(daemon)["streams"] == 0:
                break
            await asyncio.sleep(0.1)
        await asyncio.sleep(2.0)
        after, open_streams = look(daemon, soak.hours), health(daemon)["streams"]
    if args.picture:
        draw(soak.samples, args.picture)
    growth = slope(soak.samples)
    # pools of threads are filled as they are needed
    warm = next((s for s in soak.samples if s.hours >= WARM_UP * soak.hours), before)
    leaked = {
        "threads": after.threads - warm.threads,
        "descriptors": after.descriptors - before.descriptors,
        "streams": open_streams,
    }
    calm = all(value <= most for value, most in zip(leaked.values(), (2, 2, 0), strict=True))
    return {
        "benchmark": "soak",
        "model": args.model,
        "hours": round(soak.hours, 2),
        "sessions": soak.sessions,
        "rss_start_mib": round(before.rss, 1),
        "rss_end_mib": round(after.rss, 1),
        "rss_slope_mib_per_hour": round(growth, 3),
        "leaked": leaked,
        # A short run says nothing of the slope: it is not judged.
        "passed": calm and (growth < MOST_SLOPE or soak.hours < 1),
    }


def main() -> int:
    options = parser(__doc__)
    options.set_defaults(model="scripted")
    options.add_argument("--hours", type=float, default=8.0, help="of audio")
    options.add_argument("--streams", type=int, default=4, help="at once")
    options.add_argument("--picture", type=Path, help="file for a picture of the memory")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
