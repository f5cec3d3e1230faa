"""The order in which jobs are decoded. No threads and no torch here."""

from __future__ import annotations

import heapq
from concurrent.futures import Future
from dataclasses import dataclass

from ..config import SAMPLE_RATE
from ..jobs import DecodeJob, DecodeResult

__all__ = ["JobQueue", "QueuedJob"]

# Places in the queue. Somebody waits for the end of a sentence: an endpoint overtakes one job. A long
# window is that of a stream far behind, played faster than it was spoken: it lets the short ones of live
# streams go first, a number of times that its length bounds.
_ENDPOINT_PLACES = 1.5
_PLACES_PER_SECOND = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class QueuedJob:
    """A job, and the future that is answered with its result."""

    job: DecodeJob
    future: Future[DecodeResult]
    asked: float = 0.0  # the time of ``submit``, on the engine's clock

    @property
    def seconds(self) -> float:
        """The length of its audio."""
        return len(self.job.audio) / SAMPLE_RATE


class JobQueue:
    """First come, first served, in the main: the oldest update that is not met yet goes next.

    As a stream has one job out at a time, no stream can keep the others from their turn, and the queue is
    bounded by the number of streams.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, QueuedJob]] = []  # by place
        self._number = 0  # jobs so far

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, job: DecodeJob, future: Future[DecodeResult], now: float = 0.0) -> None:
        """Add a job; ``future`` is cancelled, or answered by the one who takes it."""
        self._number += 1
        entry = QueuedJob(job, future, now)
        place = self._number + entry.seconds * _PLACES_PER_SECOND
        if job.endpoint:
            place -= _ENDPOINT_PLACES
        heapq.heappush(self._heap, (place, self._number, entry))

    def take(self, most: int, seconds: float = float("inf")) -> list[QueuedJob]:
        """Return the next jobs, at most ``most``, with no more than ``seconds`` of audio in all, but at least one.

        Jobs that were cancelled meanwhile are left out.
        """
        taken: list[QueuedJob] = []
        while self._heap and len(taken) < most:
            if taken and self._heap[0][2].seconds > seconds:
                break
            _, _, entry = heapq.heappop(self._heap)
            if entry.future.set_running_or_notify_cancel():
                taken.append(entry)
                seconds -= entry.seconds
        return taken

    def clear(self) -> list[QueuedJob]:
        """Return all jobs that wait, and keep none."""
        waiting, self._heap = self._heap, []
        return [entry for _, _, entry in sorted(waiting)]
