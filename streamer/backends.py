"""What an engine wants of whatever runs its jobs: in calls, or in passes between which jobs come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .jobs import DecodeJob, DecodeResult
from .scheduler import QueuedJob

__all__ = ["Backend", "RollingBackend"]


class Backend(Protocol):
    """What runs jobs. Called from one thread only."""

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """One result for each job, in order."""
        ...


class RollingBackend(Protocol):
    """What runs jobs that come and go between its passes. Called from one thread only, but for the
    outcomes: those may be called from any, and make the result."""

    @property
    def room(self) -> int:
        """Jobs it takes now."""
        ...

    @property
    def wave_seconds(self) -> float:
        """Of audio that it should be given at once, if jobs are not to wait long for their first pass."""
        ...

    @property
    def idle(self) -> bool:
        """Whether it has no jobs."""
        ...

    @property
    def occupied(self) -> float:
        """The share of its places that jobs have, 0 to 1."""
        ...

    def admit(self, jobs: Sequence[tuple[QueuedJob, DecodeJob]]) -> None:
        """Takes jobs, each with a name of its own. Where it fails, it took none."""
        ...

    def advance(self) -> list[tuple[QueuedJob, Callable[[], DecodeResult]]]:
        """Runs one pass -> what is done by then."""
        ...

    def abandon(self) -> list[QueuedJob]:
        """Gives up all jobs."""
        ...
