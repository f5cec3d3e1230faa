"""What the daemon says about itself over HTTP."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import msgspec

from .. import __version__

__all__ = ["health", "plain"]


def health(*, draining: bool, model: str, streams: int, engine: object) -> dict[str, Any]:
    """Return the body of ``/healthz``: ``engine`` is whatever the engine's statistics() gave.

    ``cpu_seconds`` is what this process has used of the processors since it began.
    """
    return {
        "status": "stopping" if draining else "ok",
        "version": __version__,
        "model": model,
        "streams": streams,
        "cpu_seconds": round(time.process_time(), 3),
        "engine": plain(engine),
    }


def plain(statistics: object) -> Any:
    """Return statistics as JSON types, named tuples and dataclasses as maps."""
    if isinstance(statistics, tuple) and hasattr(statistics, "_asdict"):
        statistics = statistics._asdict()
    if dataclasses.is_dataclass(statistics) and not isinstance(statistics, type):
        statistics = dataclasses.asdict(statistics)
    return msgspec.to_builtins(statistics)
