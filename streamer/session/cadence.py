"""How often a stream asks for updates: on its grid while the engine keeps up, more rarely when not."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["Cadence"]

_SHARE = (
    1.5  # updates are at least this many turnarounds apart: the engine keeps a third of its time
)
_SMOOTHING = 0.3  # weight of the newest turnaround
_JUDGED = 5  # turnarounds of updates, whose median counts: two slow ones are forgiven

# A stream that is behind, after a lost connection say, works its audio off update by update, so that it
# says what it would have said. That has its bounds:
_TOLERATED = 1.0  # seconds behind, by single slow answers
_ALARMING = 3.0  # seconds behind, from which on two slow answers in a row are enough
_CATCH_UP = 15.0  # seconds that catching up may take
_MOST_BEHIND = 30.0  # seconds
_AHEAD = 2.0  # seconds of audio more than time has passed: it is played, not spoken
_DRIFT = 1 / 500  # by which a client's clock may be faster


class Cadence:
    """The interval between updates: ``least`` seconds; where updates must be skipped, more.

    An answer's time counts from the asking, waiting included, so every stream of a busy engine sees
    the same and slows down alike.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._turnaround = 0.0  # smoothed
        self._latest: deque[float] = deque([0.0] * (_JUDGED - 1), maxlen=_JUDGED)
        self._asked: float | None = None
        self._skipping = False

    @property
    def interval(self) -> float:
        """Seconds of new audio before the next update, where updates are skipped."""
        return max(self._least, _SHARE * self._turnaround)

    @property
    def skipping(self) -> bool:
        """Whether the next update goes to the live edge, leaving out those that were due before."""
        return self._skipping

    def asked(self, now: float) -> None:
        self._asked = now

    def answered(
        self, now: float, *, behind: float = 0.0, received: float = 0.0, update: bool = True
    ) -> None:
        """An answer came at ``now``, in seconds since the stream began.

        ``behind``: seconds of audio after the window that was decoded; ``received``: of all audio;
        ``update``: another one like it will follow soon, unlike after the end of an utterance.
        """
        if self._asked is None:
            return
        took = max(0.0, now - self._asked)
        self._asked = None
        # it jumps up at once: what waits already must not wait for an average
        if took > 2 * self._turnaround and took > self._least:
            self._turnaround = took
        else:
            self._turnaround += _SMOOTHING * (took - self._turnaround)
        if update:
            self._latest.append(took)
        self._skipping = self._must_skip(behind, received - now * (1 + _DRIFT))

    def _must_skip(self, behind: float, ahead: float) -> bool:
        if ahead > _AHEAD:
            return True
        typical = median(self._latest)
        if behind > _ALARMING:
            typical = max(typical, min(self._latest[-1], self._latest[-2]))
        if _SHARE * typical > self._least and (self._skipping or behind > self._least):
            return True  # the engine is busy, not late once; and not to and fro
        # every update but the last makes up for ``least - typical`` seconds
        catching_up = _CATCH_UP * (self._least - typical) / typical if typical else _MOST_BEHIND
        return behind > max(_TOLERATED, min(_MOST_BEHIND, catching_up))
