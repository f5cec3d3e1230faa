"""What a backend may be told.

What an engine wants of whatever runs its jobs: in calls, or in passes between which jobs come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ..jobs import DecodeJob, DecodeResult
from .scheduler import QueuedJob

__all__ = ["Backend", "BackendConfig", "ContextMode", "RollingBackend"]

ContextMode = Literal["trimmed", "full"]  # the audio there is with silence after it, or 30 s


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a final decode
    compression_ratio_threshold: float = 2.4  # above: the text repeats itself
    logprob_threshold: float = -1.0  # below: the text is unlikely
    no_speech_threshold: float = 0.6  # above: an unlikely text is silence, not a failure
    tokens_per_second: float = 14.0  # of audio; more is a runaway
    update_context: ContextMode = "trimmed"
    final_context: ContextMode = "full"
    final_beams: int = 5  # of the first try of a final decode; 1: greedy
    seed: int = 0  # of sampling at temperatures above 0


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
