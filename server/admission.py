"""Is there room for one more stream? Decided by how busy the engine is, not by a fixed count."""

from __future__ import annotations

from ..streamer.engine import EngineStatistics

__all__ = ["Admission"]

_SPAN = 10.0  # seconds over which the load is averaged
_UNMEASURED = 1 / 16  # of the engine, for a stream that was never measured
_SETTLE = 5.0  # seconds until a new stream shows in the load


class Admission:
    """Keeps the share of time that the engine decodes, and what one stream costs of it.

    A stream is let in while load, and the cost of those let in so lately that they do not show yet, leave
    room for one more below ``most_load``.
    """

    def __init__(self, most_load: float) -> None:
        self._most_load = most_load
        self._load = 0.0
        self._cost: float | None = None
        self._last: tuple[float, float] | None = None  # time, busy seconds
        self._admitted: list[float] = []  # when, lately

    @property
    def load(self) -> float:
        """Share of the last seconds in which the engine decoded, 0 to 1."""
        return self._load

    def observe(self, now: float, statistics: object, streams: int) -> None:
        """Look at the engine; about once a second."""
        if not isinstance(statistics, EngineStatistics):
            return
        if self._last is not None and now > self._last[0]:
            passed = now - self._last[0]
            share = min(1.0, (statistics.busy_seconds - self._last[1]) / passed)
            weight = min(1.0, passed / _SPAN)
            self._load += weight * (share - self._load)
            settled = streams - self._fresh(now)
            if settled > 0 and share > 0:
                cost = share / settled
                self._cost = (
                    cost if self._cost is None else self._cost + weight * (cost - self._cost)
                )
        self._last = (now, statistics.busy_seconds)

    def admits(self, now: float, streams: int) -> bool:
        """Whether one more may come; the first always may."""
        if streams == 0 or self._last is None:
            return True
        cost = _UNMEASURED if self._cost is None else self._cost
        return self._load + (self._fresh(now) + 1) * cost <= self._most_load

    def admitted(self, now: float) -> None:
        """One more has come."""
        self._admitted.append(now)

    def _fresh(self, now: float) -> int:
        self._admitted = [when for when in self._admitted if now - when < _SETTLE]
        return len(self._admitted)
