"""What live streams feel: how long the engine's answers take, and how much of its work is theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Paces", "Pulse", "Turnarounds"]

_SPAN = 10.0  # seconds over which the pace of audio is averaged


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
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


class Paces:
    """How fast the audio of each stream comes."""

    def __init__(self) -> None:
        self._heard: dict[str, float] = {}
        self._last: float | None = None
        self._live = self._all = 0.0  # seconds of audio a second, averaged

    def live_share(self, now: float, heard: Mapping[str, float]) -> float:
        """Take the seconds of audio that each stream has received so far; return ``Pulse.live``."""
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
