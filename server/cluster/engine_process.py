"""One engine process: it has a model, and runs the jobs that its parent sends. See ``engine_pool.py``.

It ends with its parent, and not by signals: streams that are being finished need it to the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
from collections.abc import Callable, Sequence

from ..daemon.process import freeze_gc
from ..engine import Engine, load_engine
from ..process_stats import measure_process
from .child import run_child
from .engine_host import EngineHost
from .ipc import (
    Channel,
    EngineReady,
    EngineReport,
    Message,
    StartEngine,
    StartIngress,
    StatsReport,
)
from .shared_audio import SharedAudioSlots

__all__ = ["main"]

_REPORT_SECONDS = 0.25  # between two reports of the engine's statistics
_STATS_EVERY = 4  # of these: the use of the process, which takes the GPU's driver a moment to tell


def main(argv: Sequence[str], open_engine: Callable[[StartEngine], Engine] | None = None) -> int:
    """Run one engine process; return its exit code.

    Args:
        argv: descriptors, from the parent.
        open_engine: loads the model; None: as the parent's message says.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def serve(
        channel: Channel,
        audio_slots: SharedAudioSlots,
        start: StartEngine | StartIngress,
        descriptors: list[int],
    ) -> None:
        assert isinstance(start, StartEngine)
        engine = (open_engine or _load)(start)
        freeze_gc()
        channel.send(EngineReady(model=engine.model_name, languages=tuple(engine.languages)))
        try:
            asyncio.run(_serve(channel, audio_slots, engine))
        finally:
            engine.close()

    return run_child(argv, "engine", serve)


def _load(start: StartEngine) -> Engine:
    return load_engine(start.config, start.number, start.count)


async def _serve(channel: Channel, audio_slots: SharedAudioSlots, engine: Engine) -> None:
    """Run jobs until the parent is gone."""
    host = EngineHost(channel, audio_slots, engine)
    over = asyncio.Event()

    def take(message: Message) -> None:
        host.take(message)

    def lose() -> None:
        host.cancel_all()
        over.set()

    channel.start(take, lose)
    for turn in itertools.count():
        if over.is_set():
            return
        channel.send(EngineReport(statistics=engine.statistics()))
        if turn % _STATS_EVERY == 0:
            channel.send(StatsReport(id=0, stats=measure_process()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_REPORT_SECONDS):
                await over.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
