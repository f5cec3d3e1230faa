"""Interfaces between the server and the streamer, and the engine that the daemon's options ask for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..streamer.commands import Request
from ..streamer.config import StreamConfig
from ..streamer.engine.engine import EngineStatistics
from ..streamer.events import Event
from ..streamer.jobs import DecodeJob, DecodeResult
from .config import ServerConfig
from .errors import ConfigError

__all__ = ["Engine", "Session", "load_engine"]


class Session(Protocol):
    """The state machine of one stream. The same calls in the same order give the same events."""

    @property
    def room(self) -> int:
        """Samples that may be fed now."""

    @property
    def finished(self) -> bool:
        """True once everything is committed after the end of the audio."""

    def feed(self, samples: NDArray[np.float32]) -> list[Event]:
        """Take audio [samples], 16 kHz mono."""

    def next_job(self, now: float) -> DecodeJob | None:
        """Return the next window to decode, if one is due."""

    def finish_job(self, result: DecodeResult, now: float) -> list[Event]:
        """Take the result of the job that is out."""

    def fail_job(self, reason: str, now: float) -> list[Event]:
        """Note that the job that is out has failed."""

    def request(self, command: Request) -> list[Event]:
        """Take a flush, a change of options, or the end of the audio."""


class Engine(Protocol):
    """Makes sessions, and runs their jobs on other threads or in other processes."""

    @property
    def model_name(self) -> str:
        """The model's name, for clients."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Codes that a stream may ask for; empty for a model that knows English only."""

    def new_session(self, config: StreamConfig) -> Session:
        """Return a stream whose jobs this engine can run."""

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Run ``job``. Cancelling the future drops a job that has not begun."""

    def statistics(self) -> EngineStatistics:
        """Return what the engine has done, and has to do."""

    def close(self) -> None:
        """Cancel what waits, and end."""


def load_engine(config: ServerConfig, number: int = 0, count: int = 1) -> Engine:
    """Load the model and return its engine, warmed up.

    Args:
        config: names the model and its device.
        number: which of the ``count`` engines on this machine it is, from 0.
        count: engines that share the machine.

    Raises:
        WhisperStreamError: the model cannot be loaded, or lacks a language that the options name; the text
            is one sentence that says what to do.
    """
    from ..streamer.audio.vad import make_detector
    from ..streamer.engine.opening import open_engine  # loads torch: only once it is needed

    make_detector(config.detector)  # fails before the model is loaded, which takes seconds
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
