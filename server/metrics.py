"""Counters and timings of one process, as values that can be sent to another process and added.

``http/exposition.py`` renders them for Prometheus. Observing takes place for every word and every audio frame,
so the counting itself is plain arithmetic: the client library's own counters cost two to three times as much.
No label can be filled by a client: there is no text, no session, no address in any of them.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable

import msgspec

__all__ = [
    "BUCKET_SECONDS",
    "Histogram",
    "HistogramSnapshot",
    "Metrics",
    "MetricsSnapshot",
    "RateLimitFilter",
    "RefusalCounter",
    "Turnarounds",
    "limit_repeats",
]

BUCKET_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # upper bounds
_PAUSE = 10.0  # seconds between two log lines of one kind
_MOST_KINDS = 100  # kinds of lines remembered

logger = logging.getLogger(__name__)


class RefusalCounter:
    """Counts refusals by reason, and logs one line per reason every ten seconds at most.

    Anybody can cause refusals: a flood of them must not fill a disk with log lines.

    Args:
        counts: incremented for every refusal.
        clock: monotonic seconds.
    """

    def __init__(self, counts: Counter[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # time of the last line, and the count then

    def add(self, reason: str) -> None:
        """Count one refusal. ``reason`` is one of a few words of our own; it appears in the log."""
        self._counts[reason] += 1
        now, count = self._clock(), self._counts[reason]
        last, counted = self._logged.get(reason, (now - _PAUSE, 0))
        if now - last >= _PAUSE:
            self._logged[reason] = (now, count)
            logger.info("event=refused reason=%s count=%d", reason, count - counted)


class RateLimitFilter(logging.Filter):
    """Passes each distinct message of a logger once in ten seconds: for libraries that log clients' faults."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def __len__(self) -> int:
        """Return the number of messages remembered; it is bounded."""
        return len(self._logged)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether ``record`` is logged."""
        now = self._clock()
        if now - self._logged.get(str(record.msg), now - _PAUSE) < _PAUSE:
            return False
        if len(self._logged) >= _MOST_KINDS:
            self._logged.clear()
        self._logged[str(record.msg)] = now
        return True


_REPEATS = RateLimitFilter()


def limit_repeats(name: str) -> None:
    """Limit the repeated lines of the logger ``name``; calling it again changes nothing."""
    logging.getLogger(name).addFilter(_REPEATS)


class Turnarounds:
    """Mean time from the submission of a job to its result."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        """Add the time that one job took."""
        self._sum += seconds
        self._count += 1

    def take(self) -> float | None:
        """Return the mean, in seconds, since the last call; None: no job was done."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


class HistogramSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of a histogram. All histograms have the bounds ``BUCKET_SECONDS``.

    Attributes:
        counts: observations by bucket, not cumulative; the last bucket has no upper bound. Empty: none yet.
        total: sum of the observed values, in seconds.
    """

    counts: tuple[int, ...] = ()
    total: float = 0.0

    def __add__(self, other: HistogramSnapshot) -> HistogramSnapshot:
        counts = (
            tuple(one + two for one, two in zip(self.counts, other.counts, strict=True))
            if self.counts and other.counts
            else self.counts or other.counts
        )
        return HistogramSnapshot(counts=counts, total=self.total + other.total)


class MetricsSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``Metrics`` has counted: of one process, or the sum of several."""

    streams_opened: int = 0
    audio_seconds: float = 0.0
    refusals: dict[str, int] = {}
    errors: dict[str, int] = {}
    commit_delay: HistogramSnapshot = HistogramSnapshot()
    decode_time: HistogramSnapshot = HistogramSnapshot()
    lag: HistogramSnapshot = HistogramSnapshot()

    def __add__(self, other: MetricsSnapshot) -> MetricsSnapshot:
        return MetricsSnapshot(
            streams_opened=self.streams_opened + other.streams_opened,
            audio_seconds=self.audio_seconds + other.audio_seconds,
            refusals=dict(Counter(self.refusals) + Counter(other.refusals)),
            errors=dict(Counter(self.errors) + Counter(other.errors)),
            commit_delay=self.commit_delay + other.commit_delay,
            decode_time=self.decode_time + other.decode_time,
            lag=self.lag + other.lag,
        )


class Histogram:
    """Counts durations by the buckets of ``BUCKET_SECONDS``."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKET_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self._sum += seconds

    def snapshot(self) -> HistogramSnapshot:
        """Return the counts so far."""
        return HistogramSnapshot(counts=tuple(self._counts), total=self._sum)


class Metrics:
    """Counters of one process. All methods belong to its event loop."""

    def __init__(self) -> None:
        self.streams_opened = 0
        self.audio_seconds = 0.0
        self.refusals: Counter[str] = Counter()  # by error code, or the handshake's reason
        self.errors: Counter[str] = Counter()  # by error code
        self.commit_delay = Histogram()  # from a word's end to its commit, in stream time
        self.decode_time = Histogram()  # from a job's submission to its result
        self.lag = Histogram()  # as reported to clients
        self.turnarounds = Turnarounds()  # of live streams, since admission looked last
        self._refusals = RefusalCounter(self.refusals)

    def refuse(self, reason: str) -> None:
        """Count a refusal, and log it unless a line of the same reason was logged a moment ago."""
        self._refusals.add(reason)

    def faults(self) -> int:
        """Return the number of errors that were the daemon's own fault, not a client's."""
        return sum(self.errors[kind] for kind in ("gap", "internal", "journal_failed"))

    def snapshot(self) -> MetricsSnapshot:
        """Return everything counted so far."""
        return MetricsSnapshot(
            streams_opened=self.streams_opened,
            audio_seconds=self.audio_seconds,
            refusals=dict(self.refusals),
            errors=dict(self.errors),
            commit_delay=self.commit_delay.snapshot(),
            decode_time=self.decode_time.snapshot(),
            lag=self.lag.snapshot(),
        )
