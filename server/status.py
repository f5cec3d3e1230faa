"""What the daemon says about itself over HTTP: alive, ready, and its metrics."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import numpy as np

from .. import __version__
from ..streamer.config import SAMPLE_RATE
from ..streamer.jobs import DecodeJob
from .figures import Figures
from .interfaces import Engine

__all__ = ["Readiness", "gauges", "health", "plain"]

_FRESH_SECONDS = 30.0  # a decode that succeeded so lately need not be repeated
_PROBE_SECONDS = 10.0


class Readiness:
    """Whether the engine really decodes: tried, not assumed, but seldom."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._proved = -_FRESH_SECONDS
        self._probing: asyncio.Task[bool] | None = None

    async def check(self) -> bool:
        """Decode a second of silence, unless that succeeded a moment ago."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._proved < _FRESH_SECONDS:
            return True
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        ready = await asyncio.shield(self._probing)
        if ready:
            self._proved = loop.time()
        return ready

    async def _probe(self) -> bool:
        job = DecodeJob(audio=np.zeros(SAMPLE_RATE, np.float32), language="en")
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await asyncio.wrap_future(self._engine.submit(job))
        except Exception:  # noqa: BLE001 - whatever is wrong with the engine, it is not ready
            return False
        return True


def health(
    *, draining: bool, model: str, figures: Figures, processes: int, engine: object
) -> dict[str, Any]:
    """Return the body of ``/healthz``: ``engine`` is whatever the engine's statistics() gave.

    ``cpu_seconds`` and ``memory_bytes`` are those of all processes of the daemon; ``gpu`` is there
    where the model runs on one.
    """
    gpu = {} if figures.gpu is None else {"gpu": msgspec.to_builtins(figures.gpu)}
    return {
        "status": "stopping" if draining else "ok",
        "version": __version__,
        "model": model,
        "processes": processes,
        "streams": figures.connections,
        "cpu_seconds": round(figures.cpu_seconds, 3),
        "memory_bytes": figures.memory_bytes,
        **gpu,
        "engine": plain(engine),
    }


def gauges(figures: Figures, *, load: float, engine: object) -> dict[str, float]:
    """Return present values for ``/metrics``; the engine's numbers under ``engine_``, the GPU's under ``gpu_``."""
    values = {
        "streams": float(figures.streams),
        "connections": float(figures.connections),
        "load": load,
        "cpu_seconds": figures.cpu_seconds,
        "memory_bytes": float(figures.memory_bytes),
    }
    for name, value in ({} if figures.gpu is None else msgspec.to_builtins(figures.gpu)).items():
        values[f"gpu_{name}"] = float(value)
    for name, value in plain(engine).items():
        if isinstance(value, (int, float)):
            values[f"engine_{name}"] = float(value)
    return values


def plain(statistics: object) -> Any:
    """Return statistics as JSON types, named tuples and dataclasses as maps."""
    if isinstance(statistics, tuple) and hasattr(statistics, "_asdict"):
        statistics = statistics._asdict()
    if dataclasses.is_dataclass(statistics) and not isinstance(statistics, type):
        statistics = dataclasses.asdict(statistics)
    return msgspec.to_builtins(statistics)
