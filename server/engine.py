"""What the server uses of a stream's state machine and of the engine.

From the daemon's options to an engine with a warm model.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..streamer.commands import Request
from ..streamer.config import StreamConfig
from ..streamer.events import Event
from ..streamer.jobs import DecodeJob, DecodeResult
from .config import ServerConfig
from .errors import ConfigError

__all__ = ["Engine", "Session", "load_engine"]


class Session(Protocol):
    """One stream without I/O. The same calls in the same order give the same events."""

    @property
    def room(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, samples: NDArray[np.float32]) -> list[Event]: ...
    def next_job(self, now: float) -> DecodeJob | None: ...
    def finish_job(self, result: DecodeResult, now: float) -> list[Event]: ...
    def fail_job(self, reason: str, now: float) -> list[Event]: ...
    def request(self, command: Request) -> list[Event]: ...


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


def load_engine(config: ServerConfig, number: int = 0, count: int = 1) -> Engine:
    """Load the model; it comes back warmed up.

    Args:
        number: of this engine, among ``count`` that share the machine.

    Raises the errors of loading, each one sentence.
    """
    from ..streamer.audio.vad import make_detector
    from ..streamer.engine.opening import open_engine  # loads torch: only once it is needed

    make_detector(config.detector)  # one that is missing is told before the model is loaded
    engine: Engine = open_engine(
        config.model,
        device=None if config.device == "auto" else config.device,
        compute_type=config.compute_type,
        threads=config.threads or None,
        number=number,
        count=count,
    )
    known = engine.languages or ("en",)
    unknown = None
    if config.language is not None and config.language not in known:
        unknown = f"--language {config.language!r} is not one"
    elif config.allowed_languages and not set(config.allowed_languages) & set(known):
        unknown = f"--languages {config.languages!r} has none"
    if unknown is not None:
        engine.close()
        raise ConfigError(f"{unknown} that {engine.model_name} knows: {', '.join(known)}")
    return engine
