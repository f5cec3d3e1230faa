"""Admission of streams: is there room for one more? Decided by the engine's load and its response times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...streamer.engine.engine import EngineStatistics

__all__ = ["Admission", "AdmissionLog", "LoadSample", "LocalAdmissions", "RealTimeShare"]

_SPAN = 10.0  # seconds over which the load, and the pace of audio, are averaged
_UNMEASURED = 1 / 16  # of the engine, for a stream whose cost was never measured
_SETTLE = 5.0  # seconds until a new stream shows in the load
_QUICK, _STEADY = (
    2.0,
    20.0,
)  # seconds over which turnarounds are averaged; the slower average counts
# 19 of 20 words are committed within _AT_REST seconds and _TURNAROUNDS turnarounds of being spoken: a word
# waits for two updates and for the result. Measured: benchmarks/overload.py.
_AT_REST, _TURNAROUNDS = 1.6, 2.5
# Of an engine without idle moments: a tenth more streams make turnarounds four tenths longer.
_STEEP = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One look at the streams.

    Attributes:
        live: share of the audio that came no faster than speech, 0 to 1. The rest is played: it takes the
            time that the engine has left, and could as well come more slowly.
        turnaround: mean seconds from a job to its result, since the last look; None: no job was done.
    """

    live: float = 1.0
    turnaround: float | None = None


class RealTimeShare:
    """The share of audio that comes no faster than speech, averaged over the last ten seconds."""

    def __init__(self) -> None:
        self._received: dict[str, float] = {}
        self._last: float | None = None
        self._live = self._all = 0.0  # seconds of audio per second, averaged

    def update(self, now: float, received: Mapping[str, float]) -> float:
        """Return ``LoadSample.live``.

        Args:
            now: monotonic seconds.
            received: seconds of audio that each open stream has received so far, by its id.
        """
        if self._last is not None and now > self._last:
            passed = now - self._last
            # what a stream had when it was first seen says nothing of its pace
            paces = [
                (seconds - self._received[name]) / passed
                for name, seconds in received.items()
                if name in self._received
            ]
            weight = min(1.0, passed / _SPAN)
            self._live += weight * (sum(min(1.0, pace) for pace in paces) - self._live)
            self._all += weight * (sum(paces) - self._all)
        self._last, self._received = now, dict(received)
        return min(1.0, self._live / self._all) if self._all > 0 else 1.0


class AdmissionLog(Protocol):
    """The moments at which streams were admitted: by this process, or by all of the daemon."""

    def add_admission(self, now: float) -> None:
        """Note that a stream was admitted."""

    def count_admissions(self, now: float, seconds: float) -> int:
        """Return the number of streams admitted in the last ``seconds``."""


class LocalAdmissions:
    """Admissions of the only process of a daemon."""

    def __init__(self) -> None:
        self._moments: list[float] = []

    def add_admission(self, now: float) -> None:
        """Note that a stream was admitted."""
        self._moments.append(now)

    def count_admissions(self, now: float, seconds: float) -> int:
        """Return the number of streams admitted in the last ``seconds``, and forget the earlier ones."""
        self._moments = [moment for moment in self._moments if now - moment < seconds]
        return len(self._moments)


class Admission:
    """Decides whether there is room for one more stream.

    It keeps the share of time that the engine decodes, the share that one stream costs, and the turnaround
    of jobs. A stream is admitted while the load, and the cost of streams too new to show in it, leave room
    for one more below ``max_load``. A busier engine is not a full one: updates become rarer, and cheaper.
    Above ``max_load`` streams are therefore admitted one at a time, while the words of all will be
    committed within ``max_delay``.

    Args:
        max_load: share of the engine's time, 0 to 1.
        max_delay: seconds from a word to its commit that 19 of 20 words should keep; 0: only the load counts.
        log: admissions of the whole daemon.
    """

    def __init__(
        self, max_load: float, max_delay: float = 0.0, log: AdmissionLog | None = None
    ) -> None:
        self._max_load = max_load
        self._max_delay = max_delay
        self._log = log or LocalAdmissions()
        self._load = 0.0
        self._cost: float | None = None
        self._quick = self._steady = 0.0  # averaged turnarounds, in seconds
        self._last: tuple[float, float] | None = None  # time, busy seconds

    @property
    def load(self) -> float:
        """Share of the last seconds in which the engine decoded live speech, 0 to 1."""
        return self._load

    def observe(
        self,
        now: float,
        statistics: EngineStatistics,
        streams: int,
        sample: LoadSample = LoadSample(),
    ) -> None:
        """Take in how the engine and its streams do; call it about once a second.

        Args:
            now: monotonic seconds.
            statistics: of the engine.
            streams: open in the whole daemon.
            sample: of this process's streams.
        """
        if self._last is not None and now > self._last[0]:
            passed = now - self._last[0]
            share = min(1.0, (statistics.busy_seconds - self._last[1]) / passed) * sample.live
            weight = min(1.0, passed / _SPAN)
            self._load += weight * (share - self._load)
            settled = streams - self._log.count_admissions(now, _SETTLE)
            if settled > 0 and share > 0:
                cost = share / settled
                self._cost = (
                    cost if self._cost is None else self._cost + weight * (cost - self._cost)
                )
            waiting = statistics.queued + statistics.running > 0
            self._average(passed, sample.turnaround, waiting=waiting)
        self._last = (now, statistics.busy_seconds)

    def admits(self, now: float, streams: int) -> bool:
        """Return whether one more stream may be opened; the first always may.

        Args:
            now: monotonic seconds.
            streams: open in the whole daemon.
        """
        if streams == 0 or self._last is None:
            return True
        fresh = self._log.count_admissions(now, _SETTLE)
        cost = _UNMEASURED if self._cost is None else self._cost
        room = self._load + (fresh + 1) * cost <= self._max_load
        if not self._max_delay:
            return room
        # an engine with idle moments serves one more stream as fast as the others
        growth = 0.0 if room else (fresh + 1) / max(1, streams - fresh) * _STEEP
        return self._delay(growth) <= self._max_delay and (room or fresh == 0)

    def add(self, now: float) -> None:
        """Note that a stream was admitted."""
        self._log.add_admission(now)

    def why_not(self, streams: int) -> str:
        """Return why ``admits`` was false, as the predicate of a sentence about the engine."""
        named = f"{streams} stream{'' if streams == 1 else 's'}"
        if self._max_delay and self._delay(0.0) > self._max_delay:
            return f"takes {max(self._quick, self._steady):.1f} s to answer, with {named}"
        return f"is {self._load:.0%} busy with {named}"

    def _delay(self, growth: float) -> float:
        """Return the seconds that 19 of 20 words keep if turnarounds grow by the factor ``1 + growth``."""
        return _AT_REST + _TURNAROUNDS * max(self._quick, self._steady) * (1 + growth)

    def _average(self, passed: float, turnaround: float | None, *, waiting: bool) -> None:
        if turnaround is None:
            if waiting:
                return  # it will show once the job is done
            turnaround = 0.0
        self._quick += min(1.0, passed / _QUICK) * (turnaround - self._quick)
        self._steady += min(1.0, passed / _STEADY) * (turnaround - self._steady)
