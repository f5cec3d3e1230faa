"""What the server uses of a stream's state machine and of the engine."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..streamer.config import StreamConfig
from ..streamer.events import Event
from ..streamer.jobs import DecodeJob, DecodeResult

__all__ = ["Engine", "Session"]


class Session(Protocol):
    """One stream without I/O. The same calls in the same order give the same events."""

    @property
    def room(self) -> int: ...
    @property
    def wake_at(self) -> float | None: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, samples: NDArray[np.float32]) -> list[Event]: ...
    def next_job(self, now: float) -> DecodeJob | None: ...
    def job_done(self, result: DecodeResult, now: float) -> list[Event]: ...
    def job_failed(self, reason: str, now: float) -> list[Event]: ...
    def flush(self, flush_id: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class Engine(Protocol):
    """Makes sessions, and runs their jobs elsewhere."""

    @property
    def model_name(self) -> str: ...
    @property
    def languages(self) -> tuple[str, ...]:
        """Codes accepted; empty for a model that knows English only."""

    def new_session(self, config: StreamConfig) -> Session: ...
    def submit(self, job: DecodeJob) -> Future[DecodeResult]: ...
    def statistics(self) -> object: ...
    def close(self) -> None: ...
