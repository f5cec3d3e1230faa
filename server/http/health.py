"""Health of the daemon over HTTP: the answers of ``/healthz`` and ``/readyz``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import numpy as np

from ... import __version__
from ...streamer.config import SAMPLE_RATE
from ...streamer.engine.engine import EngineStatistics
from ...streamer.jobs import DecodeJob
from ..engine import Engine
from ..errors import JournalError
from ..process_stats import ProcessStats

__all__ = ["Readiness", "health"]

_FRESH_SECONDS = 30.0  # a decode that succeeded so lately need not be repeated
_PROBE_SECONDS = 10.0


class Readiness:
    """Probe of the engine and the journal: both are really tried, but not more often than needed.

    Args:
        engine: decodes the probe.
        check_journal: raises JournalError where the journal cannot be written.
        faults: returns the number of errors of the daemon so far; after a new one everything is tried again.
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
        """Decode a second of silence and write to the journal, unless both worked a moment ago.

        Returns a sentence that says what is wrong; None: the daemon is ready.
        """
        if self._engine.statistics().processes == 0:
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
        except Exception:  # noqa: BLE001 - any failure of the engine means: not ready
            return "the engine does not decode; see the log"
        try:
            await self._check_journal()
        except JournalError as error:
            return f"{error}; make room, or move it"
        return None


def health(
    *,
    draining: bool,
    model: str,
    stats: ProcessStats,
    processes: int,
    engine: EngineStatistics,
) -> dict[str, Any]:
    """Return the body of ``GET /healthz``.

    Args:
        draining: the daemon is stopping.
        model: the model's name.
        stats: the sum over all processes of the daemon; ``gpu`` appears where the model runs on one.
        processes: number of processes that hold streams.
        engine: the engine's own statistics.
    """
    gpu = {} if stats.gpu is None else {"gpu": msgspec.to_builtins(stats.gpu)}
    return {
        "status": "stopping" if draining else "ok",
        "version": __version__,
        "model": model,
        "processes": processes,
        "streams": stats.connections,
        "cpu_seconds": round(stats.cpu_seconds, 3),
        "memory_bytes": stats.memory_bytes,
        **gpu,
        "engine": engine._asdict(),
    }
