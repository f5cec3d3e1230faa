"""One engine process: it has a model, and runs the jobs that its parent sends. See ``engine_pool.py``.

Started with the descriptors of its line to the parent and of the audio_slots with the jobs' audio. It ends with
its parent, and not by signals: streams that are being finished need it to the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
import sys
from collections.abc import Callable, Sequence

from ... import WhisperStreamError
from .. import process_stats as usage
from ..daemon.process import configure_logging, freeze_gc
from ..engine import Engine, load_engine
from ..errors import error_origin
from ..http.health import numbers
from .engine_host import EngineHost
from .ipc import Channel, EngineReady, EngineReport, StartEngine, StartFailed, StatsReport
from .shared_audio import SharedAudioSlots

__all__ = ["main"]

_TELL_SECONDS = 0.25  # between two statements of the engine's statistics
_REPORT_EVERY = 4  # of them: what the process uses, which takes the driver a moment

logger = logging.getLogger(f"{__package__}.engine_process")  # it is run as __main__


def main(argv: Sequence[str], open_engine: Callable[[StartEngine], Engine] | None = None) -> int:
    """Run one engine process; return its exit code.

    Args:
        argv: the two descriptors: line, audio_slots.
        open_engine: what brings the model; None loads the one that the parent names.
    """
    line, audio_slots = (int(each) for each in argv)
    channel = Channel(socket.socket(fileno=line))
    asked = channel.first()
    if not isinstance(asked, StartEngine):
        return 1
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    configure_logging(asked.config.log_level)
    try:
        engine = (open_engine or _load)(asked)
    except WhisperStreamError as error:
        channel.send(StartFailed(sentence=str(error)))
        channel.close()
        return 2
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        logger.error(
            "event=engine_failed error=%s at=%s", type(error).__name__, error_origin(error)
        )
        return 1
    freeze_gc()
    channel.send(EngineReady(model=engine.model_name, languages=tuple(engine.languages)))
    try:
        asyncio.run(_serve(channel, SharedAudioSlots(audio_slots), engine))
    finally:
        engine.close()
    return 0


def _load(asked: StartEngine) -> Engine:
    return load_engine(asked.config, asked.number, asked.count)


async def _serve(channel: Channel, audio_slots: SharedAudioSlots, engine: Engine) -> None:
    """Run jobs until the parent hangs up."""
    over = asyncio.Event()
    EngineHost(channel, audio_slots, engine, lambda message: None, on_lost=over.set)
    for turn in itertools.count():
        if over.is_set():
            return
        channel.send(EngineReport(fields=numbers(engine.statistics())))
        if turn % _REPORT_EVERY == 0:
            channel.send(StatsReport(id=0, figures=usage.figures()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TELL_SECONDS):
                await over.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
