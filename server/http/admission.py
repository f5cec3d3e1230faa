"""Is there room for one more stream? Decided by how busy the engine is and how fast it answers."""

from __future__ import annotations

from ...streamer.engine.engine import EngineStatistics
from ..metrics import LoadSample

__all__ = ["Admission"]

_SPAN = 10.0  # seconds over which the load is averaged
_UNMEASURED = 1 / 16  # of the engine, for a stream that was never measured
_SETTLE = 5.0  # seconds until a new stream shows in the load
_QUICK, _STEADY = 2.0, 20.0  # seconds over which answers are averaged; the slower average counts
# Of 20 words, 19 are committed within so many seconds, and so many turnarounds, of being spoken: a word
# waits for two updates and for the answer. Measured: benchmarks/daemon/overload.py.
_AT_REST, _TURNAROUNDS = 1.6, 2.5
_STEEP = (
    4  # an engine without idle moments: a tenth more streams, and answers take four tenths longer
)


class Admission:
    """Keeps the share of time that the engine decodes, what one stream costs of it, and how long answers take.

    A stream is let in while load, and the cost of those let in so lately that they do not show yet, leave
    room for one more below ``most_load``. A busier engine is not a full one: updates become rarer, and
    cheaper. So above it streams are let in one at a time, as long as the words of all will come within
    ``most_delay``.

    Attributes:
        most_delay: seconds from a word to its commit that 19 of 20 should stay within; 0: only the load counts.
    """

    def __init__(self, most_load: float) -> None:
        self.most_delay = 0.0
        self._most_load = most_load
        self._load = 0.0
        self._cost: float | None = None
        self._quick = self._steady = 0.0  # seconds that an answer takes, averaged
        self._last: tuple[float, float] | None = None  # time, busy seconds
        self._admitted: list[float] = []  # when, lately

    @property
    def load(self) -> float:
        """Share of the last seconds in which the engine decoded live speech, 0 to 1."""
        return self._load

    def observe(
        self, now: float, statistics: object, streams: int, sample: LoadSample | None = None
    ) -> None:
        """Look at the engine, and at what its streams do; about once a second."""
        if not isinstance(statistics, EngineStatistics):
            return
        sample = sample or LoadSample()
        if self._last is not None and now > self._last[0]:
            passed = now - self._last[0]
            share = min(1.0, (statistics.busy_seconds - self._last[1]) / passed) * sample.live
            weight = min(1.0, passed / _SPAN)
            self._load += weight * (share - self._load)
            settled = streams - self._fresh(now)
            if settled > 0 and share > 0:
                cost = share / settled
                self._cost = (
                    cost if self._cost is None else self._cost + weight * (cost - self._cost)
                )
            waiting = statistics.queued + statistics.running > 0
            self._note(passed, sample.turnaround, waiting=waiting)
        self._last = (now, statistics.busy_seconds)

    def admits(self, now: float, streams: int) -> bool:
        """Whether one more may come; the first always may."""
        if streams == 0 or self._last is None:
            return True
        fresh = self._fresh(now)
        cost = _UNMEASURED if self._cost is None else self._cost
        room = self._load + (fresh + 1) * cost <= self._most_load
        if not self.most_delay:
            return room
        # an engine with idle moments answers one more as fast as the others
        growth = 0.0 if room else (fresh + 1) / max(1, streams - fresh) * _STEEP
        return self._delay(growth) <= self.most_delay and (room or fresh == 0)

    def why_not(self, streams: int) -> str:
        """What ``admits`` said no for, in words that end a sentence on the engine."""
        named = f"{streams} stream{'' if streams == 1 else 's'}"
        if self.most_delay and self._delay(0.0) > self.most_delay:
            return f"takes {max(self._quick, self._steady):.1f} s to answer, with {named}"
        return f"is {self._load:.0%} busy with {named}"

    def _delay(self, growth: float) -> float:
        """Seconds that 19 of 20 words will be committed within, if answers take so many times longer."""
        return _AT_REST + _TURNAROUNDS * max(self._quick, self._steady) * (1 + growth)

    def admitted(self, now: float) -> None:
        """One more has come."""
        self._admitted.append(now)

    def _note(self, passed: float, turnaround: float | None, *, waiting: bool) -> None:
        if turnaround is None:
            if waiting:
                return  # it will show once it is answered
            turnaround = 0.0
        self._quick += min(1.0, passed / _QUICK) * (turnaround - self._quick)
        self._steady += min(1.0, passed / _STEADY) * (turnaround - self._steady)

    def _fresh(self, now: float) -> int:
        self._admitted = [when for when in self._admitted if now - when < _SETTLE]
        return len(self._admitted)
