"""What the daemon says about itself over HTTP: alive, ready, and its metrics."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from ... import __version__
from ...streamer.config import SAMPLE_RATE
from ...streamer.jobs import DecodeJob
from ..engine import Engine
from ..errors import JournalError
from ..process_stats import ProcessStats

__all__ = ["Readiness", "gauges", "health", "numbers", "plain"]

_FRESH_SECONDS = 30.0  # a decode that succeeded so lately need not be repeated
_PROBE_SECONDS = 10.0


class Readiness:
    """Whether the engine really decodes, and the journal is written: tried, not assumed, but seldom.

    Args:
        check_journal: raises JournalError where the journal cannot be written.
        faults: grows with everything that goes wrong in the daemon; then all is tried anew.
    """

    def __init__(
        self,
        engine: Engine,
        check_journal: Callable[[], Awaitable[None]],
        faults: Callable[[], int],
    ) -> None:
        self._engine = engine
        self._check_journal = check_journal
        self._faults = faults
        self._faults_then = 0  # when all was well
        self._proved = -_FRESH_SECONDS
        self._probing: asyncio.Task[str | None] | None = None

    async def check(self) -> str | None:
        """Decode a second of silence, unless all was well a moment ago -> what is wrong, if anything."""
        if numbers(self._engine.statistics()).get("processes", 1) == 0:
            return "no engine process is there; the next one is being started"
        loop = asyncio.get_running_loop()
        faults = self._faults()
        if loop.time() - self._proved < _FRESH_SECONDS and faults == self._faults_then:
            return None
        if self._probing is None or self._probing.done():
            self._probing = asyncio.create_task(self._probe())
        wrong = await asyncio.shield(self._probing)
        if wrong is None:
            self._proved, self._faults_then = loop.time(), faults
        return wrong

    async def _probe(self) -> str | None:
        job = DecodeJob(audio=np.zeros(SAMPLE_RATE, np.float32), language="en")
        try:
            async with asyncio.timeout(_PROBE_SECONDS):
                await asyncio.wrap_future(self._engine.submit(job))
        except Exception:  # noqa: BLE001 - whatever is wrong with the engine, it is not ready
            return "the engine does not decode; see the log"
        try:
            await self._check_journal()
        except JournalError as error:
            return f"{error}; make room, or move it"
        return None


def health(
    *, draining: bool, model: str, figures: ProcessStats, processes: int, engine: object
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


def gauges(figures: ProcessStats, *, load: float, engine: object) -> dict[str, float]:
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
    for name, value in numbers(engine).items():
        values[f"engine_{name}"] = float(value)
    return values


def numbers(statistics: object) -> dict[str, int | float]:
    """Return those of the statistics that are numbers, by name."""
    fields = plain(statistics)
    return {name: value for name, value in fields.items() if isinstance(value, (int, float))}


def plain(statistics: object) -> Any:
    """Return statistics as JSON types, named tuples and dataclasses as maps."""
    if isinstance(statistics, tuple) and hasattr(statistics, "_asdict"):
        statistics = statistics._asdict()
    if dataclasses.is_dataclass(statistics) and not isinstance(statistics, type):
        statistics = dataclasses.asdict(statistics)
    return msgspec.to_builtins(statistics)
