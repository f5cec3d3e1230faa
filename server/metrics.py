"""What anybody can cause is counted each time, but logged seldom: a flood of it must not fill a disk.

What live streams feel: how long the engine's answers take, and how much of its work is theirs.

Counters and timings of the daemon, as Prometheus reads them.

Written by hand: a dozen metrics need no library, and none of its process-wide registries. There is no
label that a client could fill: no text, no session, no address.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

__all__ = [
    "Histogram",
    "Metrics",
    "MetricsState",
    "RealTimeShare",
    "LoadSample",
    "Refusals",
    "SELDOM",
    "Seldom",
    "Turnarounds",
]

_PAUSE = 10.0  # seconds between two lines of a kind
_MOST_KINDS = 100  # of lines remembered

logger = logging.getLogger(__name__)


class Refusals:
    """Counts refusals by reason.

    Args:
        counts: grows with every one.
        clock: monotonic seconds.
    """

    def __init__(self, counts: Counter[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._counts = counts
        self._clock = clock
        self._logged: dict[str, tuple[float, int]] = {}  # when, and the count then

    def note(self, reason: str) -> None:
        """One more. ``reason`` is one of a few words of our own, and goes to the log."""
        self._counts[reason] += 1
        now, count = self._clock(), self._counts[reason]
        last, counted = self._logged.get(reason, (now - _PAUSE, 0))
        if now - last >= _PAUSE:
            self._logged[reason] = (now, count)
            logger.info("event=refused reason=%s count=%d", reason, count - counted)


class Seldom(logging.Filter):
    """Lets the same line of a logger pass once in a while; for libraries that log what clients do wrong."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        if now - self._logged.get(str(record.msg), now - _PAUSE) < _PAUSE:
            return False
        if len(self._logged) >= _MOST_KINDS:
            self._logged.clear()
        self._logged[str(record.msg)] = now
        return True


SELDOM = Seldom()


_SPAN = 10.0  # seconds over which the pace of audio is averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One look at the streams.

    Attributes:
        live: share of the audio that came no faster than speech, 0 to 1. The rest is played: it takes
            what time the engine has left, and could as well come more slowly.
        turnaround: seconds that the answers since the last look took, on average; None: there were none.
    """

    live: float = 1.0
    turnaround: float | None = None


class Turnarounds:
    """Seconds from a job's asking to its answer."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        self._sum += seconds
        self._count += 1

    def take(self) -> float | None:
        """Return the mean of those since the last call; None: there were none."""
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean


class RealTimeShare:
    """How fast the audio of each stream comes."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._last: float | None = None
        self._live = self._all = 0.0  # seconds of audio a second, averaged

    def live_share(self, now: float, heard: Mapping[str, float]) -> float:
        """Take the seconds of audio that each stream has received so far; return ``LoadSample.live``."""
        if self._last is not None and now > self._last:
            passed = now - self._last
            # what a stream had when it was first seen says nothing of its pace
            paces = [
                (seconds - self._heard[name]) / passed
                for name, seconds in heard.items()
                if name in self._heard
            ]
            weight = min(1.0, passed / _SPAN)
            self._live += weight * (sum(min(1.0, pace) for pace in paces) - self._live)
            self._all += weight * (sum(paces) - self._all)
        self._last, self._heard = now, dict(heard)
        return min(1.0, self._live / self._all) if self._all > 0 else 1.0


_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class HistogramState(msgspec.Struct, frozen=True, kw_only=True):
    """What a histogram has counted; all of a kind have the same bounds."""

    counts: tuple[int, ...] = ()
    total: float = 0.0

    def __add__(self, other: HistogramState) -> HistogramState:
        longest = max(len(self.counts), len(other.counts))
        mine = (*self.counts, *(0,) * (longest - len(self.counts)))
        theirs = (*other.counts, *(0,) * (longest - len(other.counts)))
        counts = tuple(one + two for one, two in zip(mine, theirs, strict=True))
        return HistogramState(counts=counts, total=self.total + other.total)


class MetricsState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that ``Metrics`` has counted, as a value that can be sent and added."""

    streams_opened: int = 0
    audio_seconds: float = 0.0
    refusals: dict[str, int] = {}
    errors: dict[str, int] = {}
    histograms: dict[str, HistogramState] = {}

    def __add__(self, other: MetricsState) -> MetricsState:
        names = {**self.histograms, **other.histograms}
        none = HistogramState()
        return MetricsState(
            streams_opened=self.streams_opened + other.streams_opened,
            audio_seconds=self.audio_seconds + other.audio_seconds,
            refusals=dict(Counter(self.refusals) + Counter(other.refusals)),
            errors=dict(Counter(self.errors) + Counter(other.errors)),
            histograms={
                name: self.histograms.get(name, none) + other.histograms.get(name, none)
                for name in names
            },
        )


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: tuple[float, ...] = _SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def state(self) -> HistogramState:
        return HistogramState(counts=tuple(self._counts), total=self._sum)

    def restore(self, state: HistogramState) -> None:
        if state.counts:
            self._counts, self._sum = list(state.counts), state.total

    def lines(self, name: str) -> list[str]:
        lines, total = [], 0
        for bound, count in zip(self._bounds, self._counts, strict=False):
            total += count
            lines.append(f'{name}_bucket{{le="{bound:g}"}} {total}')
        total += self._counts[-1]
        lines.append(f'{name}_bucket{{le="+Inf"}} {total}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {total}"]


class Metrics:
    """What is counted while the daemon runs. All methods belong to its event loop."""

    def __init__(self) -> None:
        self.streams_opened = 0
        self.audio_seconds = 0.0
        self.refusals: Counter[str] = Counter()  # by error code, or the handshake's reason
        self._refusals = Refusals(self.refusals)
        self.errors: Counter[str] = Counter()  # by error code
        self.commit_delay = Histogram()  # from a word's end to its commit, in stream time
        self.decode_time = Histogram()  # from a job's asking to its answer
        self.lag = Histogram()  # as told to clients
        self.turnarounds = Turnarounds()  # of live streams, since admission looked last

    def refuse(self, reason: str) -> None:
        """Count a refusal, and log it if the last line of its kind is not too fresh."""
        self._refusals.note(reason)

    def faults(self) -> int:
        """How often something of ours went wrong, and not of a client's."""
        return sum(self.errors[kind] for kind in ("gap", "internal", "journal_failed"))

    @property
    def _histograms(self) -> dict[str, Histogram]:
        return {"commit_delay": self.commit_delay, "decode": self.decode_time, "lag": self.lag}

    def state(self) -> MetricsState:
        """Return what was counted so far."""
        return MetricsState(
            streams_opened=self.streams_opened,
            audio_seconds=self.audio_seconds,
            refusals=dict(self.refusals),
            errors=dict(self.errors),
            histograms={name: each.state() for name, each in self._histograms.items()},
        )

    @classmethod
    def of(cls, state: MetricsState) -> Metrics:
        """Return metrics that have counted ``state``."""
        metrics = cls()
        metrics.streams_opened = state.streams_opened
        metrics.audio_seconds = state.audio_seconds
        metrics.refusals.update(state.refusals)
        metrics.errors.update(state.errors)
        for name, histogram in metrics._histograms.items():
            if name in state.histograms:
                histogram.restore(state.histograms[name])
        return metrics

    def text(self, gauges: dict[str, float]) -> str:
        """Return everything, with ``gauges`` (name to present value), in the text format 0.0.4."""
        lines: list[str] = []
        counters = {"streams_opened": self.streams_opened, "audio_seconds": self.audio_seconds}
        for name, value in counters.items():
            full = f"whisper_stream_{name}_total"
            lines += [f"# TYPE {full} counter", f"{full} {value:g}"]
        for name, label, counts in (
            ("refusals", "reason", self.refusals),
            ("errors", "kind", self.errors),
        ):
            full = f"whisper_stream_{name}_total"
            lines.append(f"# TYPE {full} counter")
            lines += [f'{full}{{{label}="{key}"}} {counts[key]}' for key in sorted(counts)]
        for name, histogram in self._histograms.items():
            full = f"whisper_stream_{name}_seconds"
            lines += [f"# TYPE {full} histogram", *histogram.lines(full)]
        for name, gauge in gauges.items():
            full = f"whisper_stream_{name}"
            lines += [f"# TYPE {full} gauge", f"{full} {gauge:g}"]
        return "\n".join(lines) + "\n"
