"""How often a stream asks for updates, by how long the engine takes to answer."""

from __future__ import annotations

__all__ = ["Cadence"]

_SHARE = (
    1.5  # updates are at least this many turnarounds apart: the engine keeps a third of its time
)
_SMOOTHING = 0.3  # weight of the newest turnaround


class Cadence:
    """The interval between updates: ``least`` seconds, more where answers are slow.

    An answer's time counts from the asking, waiting included, so every stream of a busy engine sees
    the same and slows down alike.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._turnaround = 0.0
        self._asked: float | None = None

    @property
    def interval(self) -> float:
        """Seconds of new audio before the next update."""
        return max(self._least, _SHARE * self._turnaround)

    def asked(self, now: float) -> None:
        self._asked = now

    def answered(self, now: float) -> None:
        if self._asked is None:
            return
        took = max(0.0, now - self._asked)
        self._asked = None
        # it jumps up at once: what waits already must not wait for an average
        if took > 2 * self._turnaround and took > self._least:
            self._turnaround = took
        else:
            self._turnaround += _SMOOTHING * (took - self._turnaround)
