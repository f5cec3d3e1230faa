"""The pace of a stream's updates when its engine is slow, and reports of its lag to the client."""

from __future__ import annotations

from collections import deque
from statistics import median

from ..events import Event, Lag

__all__ = ["Cadence", "LagReporter"]

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

_REPORTED = 2.0  # seconds behind the live edge, from which on the client learns of it
_REPORT_STEP = 1.0  # seconds of change after which it learns the new figure


class Cadence:
    """The pace of updates: all of them while the engine keeps up; where it does not, some are skipped.

    The turnaround of a job counts from ``begin_job`` to ``end_job``, waiting included, so every stream
    of a busy engine sees the same and slows down alike.

    Args:
        least: seconds of new audio between two updates of an engine that keeps up.
    """

    def __init__(self, least: float) -> None:
        self._least = least
        self._turnaround = 0.0  # smoothed
        self._latest: deque[float] = deque([0.0] * (_JUDGED - 1), maxlen=_JUDGED)
        self._begun: float | None = None  # when the job went out
        self._skipping = False

    @property
    def interval(self) -> float:
        """Seconds of new audio before the next update, where updates are skipped."""
        return max(self._least, _SHARE * self._turnaround)

    @property
    def skipping(self) -> bool:
        """True while the next update goes to the live edge and leaves out those due before."""
        return self._skipping

    def begin_job(self, now: float) -> None:
        """Start the turnaround of a job that goes out at ``now``, seconds since the stream began."""
        self._begun = now

    def end_job(
        self, now: float, *, behind: float = 0.0, received: float = 0.0, update: bool = True
    ) -> None:
        """End the turnaround of the job, and decide whether updates are skipped from here on.

        Args:
            now: seconds since the stream began.
            behind: seconds of audio received after the window that was decoded.
            received: seconds of audio received in all.
            update: False for the end of an utterance, which tells nothing about the next update.
        """
        if self._begun is None:
            return
        took = max(0.0, now - self._begun)
        self._begun = None
        # it jumps up at once: what waits already must not wait for an average
        if took > 2 * self._turnaround and took > self._least:
            self._turnaround = took
        else:
            self._turnaround += _SMOOTHING * (took - self._turnaround)
        if update:
            self._latest.append(took)
        self._skipping = self._must_skip(behind, received - now * (1 + _DRIFT))

    def _must_skip(self, behind: float, ahead: float) -> bool:
        """Decide for a stream ``behind`` seconds late whose audio came ``ahead`` seconds too early."""
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


class LagReporter:
    """Tells the client how far its words are behind the audio, in steps, and when that is over."""

    def __init__(self) -> None:
        self._reported = 0.0

    def report(self, behind: float, interval: float) -> list[Event]:
        """Return a ``Lag`` where the figure has changed by a step.

        Args:
            behind: seconds of audio received after the latest window that was decoded.
            interval: seconds between two updates now.
        """
        if behind < _REPORTED:
            behind = 0.0
        if abs(behind - self._reported) < _REPORT_STEP:
            return []
        self._reported = behind
        return [Lag(behind_seconds=behind, interval_seconds=interval)]
