"""From the daemon's options to an engine with a warm model."""

from __future__ import annotations

from .config import ServerConfig
from .errors import ConfigError
from .interfaces import Engine

__all__ = ["load_engine"]


def load_engine(config: ServerConfig, number: int = 0, count: int = 1) -> Engine:
    """Load the model; it comes back warmed up.

    Args:
        number: of this engine, among ``count`` that share the machine.

    Raises the errors of loading, each one sentence.
    """
    from ..streamer.detectors import make_detector
    from ..streamer.opening import open_engine  # loads torch: only once it is needed

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
