"""The contract between the engine and a model: jobs are admitted, and each step finishes some of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple, Protocol

from ...model.decoding.fallback import TEMPERATURES, FallbackPolicy
from ..jobs import DecodeJob, DecodeResult
from .scheduler import QueuedJob

__all__ = [
    "Backend",
    "BackendConfig",
    "BusyRule",
    "ContextMode",
    "Outcome",
    "Room",
    "SequentialBackend",
]

ContextMode = Literal["trimmed", "full"]  # the window's audio with some silence after it, or 30 s

# Makes the result of a finished job, or raises the error that it failed with. May be called on any thread.
Outcome = Callable[[], DecodeResult]


class Room(NamedTuple):
    """The jobs that a backend takes at once; a single job may always be longer than ``seconds``."""

    jobs: int
    seconds: float = float("inf")  # of audio, in all


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyRule:
    """The load from which endpoints are hurried: all three conditions must hold.

    A hurried endpoint has the audio context of an update, which is cheaper.
    """

    taken: int = 1  # jobs that the backend takes together, at least
    left: int = 0  # jobs that still wait after that for each backend of the engine, at least
    waited: float = 0.0  # seconds that one of those taken has waited, at least
    beams: bool = True  # a hurried endpoint still gets a beam search

    def applies(self, *, taken: int, left: int, waited: float) -> bool:
        """Return whether all three conditions hold."""
        return taken >= self.taken and left >= self.left and waited >= self.waited


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """Options of decoding windows. The defaults are those of the product; tests and benchmarks compare others."""

    temperatures: tuple[float, ...] = TEMPERATURES  # of an endpoint's tries
    fallback: FallbackPolicy = FallbackPolicy(rejects_repeats_over_silence=True)
    update_context: ContextMode = "trimmed"
    endpoint_context: ContextMode = "full"
    endpoint_beams: int = 5  # of an endpoint's first try; 1: greedy

    def context(self, job: DecodeJob) -> ContextMode:
        """Return the audio context that ``job`` is decoded with."""
        whole = job.endpoint and not job.hurried
        return self.endpoint_context if whole else self.update_context

    def searches(self, job: DecodeJob, temperature: float, rule: BusyRule) -> bool:
        """Return whether a try of ``job`` at ``temperature`` is a beam search rather than greedy."""
        allowed = job.endpoint and (rule.beams or not job.hurried)
        return allowed and temperature == 0.0 and self.endpoint_beams > 1


class Backend(Protocol):
    """Runs jobs that come and go between its steps. Used from one thread only, but for the outcomes."""

    @property
    def busy_rule(self) -> BusyRule:
        """The load from which its endpoints are hurried."""
        ...

    @property
    def room(self) -> Room:
        """The jobs that ``admit`` takes now."""
        ...

    @property
    def occupied(self) -> float:
        """The share of its places that jobs have, 0 to 1; 0 if it has none."""
        ...

    def admit(self, jobs: Sequence[QueuedJob]) -> None:
        """Take jobs that fit in ``room``. Where that fails, none of them was taken."""
        ...

    def step(self) -> list[tuple[QueuedJob, Outcome]]:
        """Go on with all jobs for a moment; return those that are finished."""
        ...

    def abandon(self) -> list[QueuedJob]:
        """Forget all jobs, after ``step`` has failed; return them."""
        ...

    def is_fatal(self, error: Exception) -> bool:
        """Return whether no job can be run in this process after ``error``."""
        ...


class SequentialBackend(ABC):
    """Runs one job a step, from beginning to end: the simplest backend."""

    busy_rule = BusyRule(left=2)

    def __init__(self) -> None:
        self._admitted: QueuedJob | None = None

    @abstractmethod
    def decode_one(self, job: DecodeJob) -> DecodeResult:
        """Run ``job``."""

    def decode(self, jobs: Sequence[DecodeJob]) -> list[DecodeResult]:
        """Run ``jobs`` without an engine; one result for each, in order."""
        return [self.decode_one(job) for job in jobs]

    @property
    def room(self) -> Room:
        return Room(1 if self._admitted is None else 0)

    @property
    def occupied(self) -> float:
        return 0.0 if self._admitted is None else 1.0

    def admit(self, jobs: Sequence[QueuedJob]) -> None:
        for entry in jobs:
            self._admitted = entry

    def step(self) -> list[tuple[QueuedJob, Outcome]]:
        entry = self._admitted
        if entry is None:
            return []
        result = self.decode_one(entry.job)
        self._admitted = None
        return [(entry, partial(_same, result))]

    def abandon(self) -> list[QueuedJob]:
        entry, self._admitted = self._admitted, None
        return [] if entry is None else [entry]

    def is_fatal(self, error: Exception) -> bool:
        return False


def _same(result: DecodeResult) -> DecodeResult:
    return result
