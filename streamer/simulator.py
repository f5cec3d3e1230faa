"""A simulator that plays audio through a session without sockets or threads, on a clock of its own.

The session decides as it does in the daemon, by nothing but the audio and the cost of each decode: for
tests, benchmarks and replays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .commands import EndOfStream
from .config import SAMPLE_RATE
from .events import Event
from .jobs import DecodeJob, DecodeResult
from .session.session import StreamSession

__all__ = ["TimedEvent", "simulate"]

_STEP = SAMPLE_RATE // 10  # audio arrives in such steps


@dataclass(frozen=True, slots=True)
class TimedEvent:
    """An event, and when it came."""

    time: float  # seconds since the first sample was spoken
    event: Event


def simulate(
    session: StreamSession,
    chunks: Iterable[NDArray[np.float32]],
    decode: Callable[[DecodeJob], DecodeResult],
    *,
    cost: Callable[[DecodeJob, DecodeResult], float] = lambda job, result: 0.0,
) -> Iterator[TimedEvent]:
    """Feed ``chunks`` to ``session`` as if live, decode as it asks, and yield its events.

    Args:
        session: a fresh one.
        chunks: samples [S] each, 16 kHz mono in -1..1.
        decode: runs a job.
        cost: seconds that a decode is taken to last. Meanwhile audio piles up, as it would live.
    """
    free_at = 0.0  # when the engine can take another job
    now = 0.0
    job: DecodeJob | None = None
    result: DecodeResult | None = None

    def start_job() -> None:
        nonlocal job, result, free_at
        if job is None and (job := session.next_job(now)) is not None:
            result = decode(job)
            free_at = now + cost(job, result)

    def finish_job() -> list[Event]:
        nonlocal job, result
        assert result is not None
        done, job, result = result, None, None
        return session.finish_job(done, now)

    spoken = 0.0  # when the latest step has been said
    for step in _steps(chunks):
        spoken += len(step) / SAMPLE_RATE
        # results that come before this step, and those it must wait for because the buffer is full
        while job is not None and (free_at <= spoken or session.room < len(step)):
            now = max(now, free_at)
            for event in finish_job():
                yield TimedEvent(now, event)
            start_job()
        now = max(now, spoken)
        for event in session.feed(step):
            yield TimedEvent(now, event)
        start_job()
        while job is not None and free_at <= now:  # decoding takes no time
            for event in finish_job():
                yield TimedEvent(now, event)
            start_job()
    if job is not None:
        now = max(now, free_at)
        for event in finish_job():
            yield TimedEvent(now, event)
    for event in session.request(EndOfStream()):
        yield TimedEvent(now, event)
    while not session.finished:
        start_job()
        if job is None:
            raise RuntimeError("the session is not finished but has no job")
        now = free_at
        for event in finish_job():
            yield TimedEvent(now, event)


def _steps(chunks: Iterable[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield the samples of ``chunks``, cut anew into steps of 0.1 s; the last may be shorter."""
    pending = np.zeros(0, dtype=np.float32)
    for chunk in chunks:
        pending = np.concatenate((pending, chunk))
        while len(pending) >= _STEP:
            yield pending[:_STEP]
            pending = pending[_STEP:]
    if len(pending):
        yield pending
