"""What anybody can cause is counted each time, but logged seldom: a flood of it must not fill a disk."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable

__all__ = ["SELDOM", "Refusals", "Seldom"]

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
