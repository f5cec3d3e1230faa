"""One recording through a stream in this process, by one of three clocks, with its cost measured."""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .backends import Backend
from .config import SAMPLE_RATE
from .events import Event
from .jobs import DecodeJob, DecodeResult
from .session import StreamSession
from .simulator import TimedEvent, simulate

__all__ = ["Clock", "MeteredBackend", "PeakMemory", "StreamRun", "play_live", "run_stream"]

Clock = Literal["virtual", "free", "real"]

_STEP = SAMPLE_RATE // 10  # audio arrives in such steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """``costs`` has the wall seconds of each update: the same schedule can be run again with them."""

    events: tuple[TimedEvent, ...]
    audio_seconds: float
    cpu_seconds: float  # of the whole process, while the stream ran
    costs: tuple[float, ...]
    decoder_steps: int


@dataclass(slots=True, eq=False)
class MeteredBackend:
    """A backend that keeps account. ``drafts`` False: every update is decoded again from nothing."""

    backend: Backend
    drafts: bool = True
    costs: list[float] = field(default_factory=list)
    steps: int = 0

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        if not self.drafts:
            jobs = [replace(job, draft=()) for job in jobs]
        started = time.perf_counter()
        results = self.backend.decode(jobs)
        self.costs.append(time.perf_counter() - started)
        self.steps += sum(result.steps for result in results)
        return results


def run_stream(
    session: StreamSession,
    audio: NDArray[np.float32],
    meter: MeteredBackend,
    *,
    clock: Clock,
    costs: Sequence[float] | None = None,
    submit: Callable[[DecodeJob], Future[DecodeResult]] | None = None,
) -> StreamRun:
    """Plays ``audio`` [samples] through ``session`` on a fresh ``meter``.

    ``virtual``: each update takes, on the stream's clock, the time it took here, or that of ``costs``
    in its turn. ``free``: it takes none. ``real``: audio comes at the speed of speech, and
    ``submit`` runs the jobs elsewhere.
    """
    given = itertools.chain(costs, itertools.repeat(0.0)) if costs is not None else None

    def cost(job: DecodeJob, result: DecodeResult) -> float:
        if clock == "free":
            return 0.0
        return next(given) if given is not None else meter.costs[-1]

    cpu = time.process_time()
    if clock == "real":
        assert submit is not None
        events = tuple(play_live(session, audio, submit))
    else:
        decode = lambda job: meter.decode([job])[0]  # noqa: E731
        events = tuple(simulate(session, [audio], decode, cost=cost))
    return StreamRun(
        events=events,
        audio_seconds=len(audio) / SAMPLE_RATE,
        cpu_seconds=time.process_time() - cpu,
        costs=tuple(meter.costs),
        decoder_steps=meter.steps,
    )


def play_live(
    session: StreamSession,
    audio: NDArray[np.float32],
    submit: Callable[[DecodeJob], Future[DecodeResult]],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TimedEvent]:
    """Feeds ``audio`` at the speed of speech while the jobs run on another thread."""
    begun = clock()
    finished: queue.SimpleQueue[Future[DecodeResult]] = queue.SimpleQueue()
    running: Future[DecodeResult] | None = None
    at = 0
    ended = False

    def told(events: list[Event]) -> list[TimedEvent]:
        return [TimedEvent(clock() - begun, event) for event in events]

    while not session.finished:
        if running is None and (job := session.next_job(clock() - begun)) is not None:
            running = submit(job)
            running.add_done_callback(finished.put)
        if at == len(audio) and not ended:
            ended = True
            yield from told(session.finish())
            continue
        step = audio[at : at + _STEP]
        wait: float | None = None
        if len(step) and session.room >= len(step):
            # its last sample has been spoken by then
            wait = max(0.0, (at + len(step)) / SAMPLE_RATE - (clock() - begun))
        elif running is None:
            raise RuntimeError("the session has no room, or is not finished, but has no job")
        try:
            done = finished.get(timeout=wait)
        except queue.Empty:
            yield from told(session.feed(step))
            at += len(step)
            continue
        running = None
        yield from told(session.job_done(done.result(), clock() - begun))


class PeakMemory:
    """The most memory this process holds from now on; where the system cannot say that, ever."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak
        except OSError:
            self._status: Path | None = None
        else:
            self._status = Path("/proc/self/status")

    def megabytes(self) -> float:
        if self._status is not None:
            lines = self._status.read_text().splitlines()
            kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
            return int(kilobytes) * 1024 / 1e6
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
