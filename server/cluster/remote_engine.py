"""The engine as an ingress process sees it: jobs go to the parent process, and results come back. No torch."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future

from ...streamer.engine.engine import EngineStatistics
from ...streamer.errors import EngineClosedError
from ...streamer.jobs import DecodeJob, DecodeResult
from ..process_stats import ProcessStats
from .ipc import (
    Channel,
    CollectStats,
    EngineReport,
    IngressReady,
    Message,
    StartIngress,
    StatsReport,
    StatsTotal,
)
from .job_line import JobLine, RemoteSessions
from .shared_audio import SharedAudioSlots

__all__ = ["RemoteEngine"]

_COLLECT_SECONDS = 2.0


class RemoteEngine(RemoteSessions):
    """An engine in the parent process. All methods belong to one event loop.

    Args:
        channel: to the parent, which has sent ``start``.
        audio_slots: from which it reads the audio of jobs.
        start: what the parent said of its engine.
        on_lost: called once the parent is gone.
    """

    def __init__(
        self,
        channel: Channel,
        audio_slots: SharedAudioSlots,
        start: StartIngress,
        on_lost: Callable[[], None],
    ) -> None:
        super().__init__(start.languages)
        self.model_name = start.model
        self.languages = start.languages
        self._channel = channel
        self._line = JobLine(channel, audio_slots)
        self._on_lost = on_lost
        self._measure: Callable[[], ProcessStats] = ProcessStats
        self._numbers = itertools.count(1)
        self._collecting: dict[int, asyncio.Future[ProcessStats]] = {}
        self._statistics = start.statistics
        self._closed = False

    def start(self, measure: Callable[[], ProcessStats]) -> None:
        """Begin to take messages, in the running event loop.

        Args:
            measure: returns the statistics of this process, when the parent asks for them.
        """
        self._measure = measure
        self._channel.start(self._take, self._lose)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Send ``job`` on its way. Cancelling the future drops it there, if it has not begun.

        Raises:
            EngineClosedError: the parent is gone.
        """
        if self._closed:
            raise EngineClosedError
        return self._line.submit(job)

    def statistics(self) -> EngineStatistics:
        """Return the engine's statistics, as they were a moment ago."""
        return self._statistics

    async def collect(self) -> ProcessStats | None:
        """Return the statistics of all processes together; None if they do not come in time."""
        number = next(self._numbers)
        future: asyncio.Future[ProcessStats] = asyncio.get_running_loop().create_future()
        self._collecting[number] = future
        self._channel.send(CollectStats(id=number))
        try:
            async with asyncio.timeout(_COLLECT_SECONDS):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._collecting[number]

    def report_ready(self) -> None:
        """Tell the parent that this process accepts connections."""
        self._channel.send(IngressReady())

    def report_stats(self, number: int = 0) -> None:
        """Send the parent the statistics of this process, in answer to request ``number`` if there is one."""
        self._channel.send(StatsReport(id=number, stats=self._measure()))

    def close(self) -> None:
        """Cut the channel, and cancel the jobs without an answer."""
        self._cancel_jobs()
        self._channel.close()

    def _take(self, message: Message) -> None:
        if self._line.take(message):
            return
        match message:
            case EngineReport(statistics=statistics):
                self._statistics = statistics
            case CollectStats(id=number):
                self.report_stats(number)
            case StatsTotal(id=number, stats=stats):
                future = self._collecting.get(number)
                if future is not None and not future.done():
                    future.set_result(stats)

    def _lose(self) -> None:
        if not self._closed:
            self._cancel_jobs()
            self._on_lost()

    def _cancel_jobs(self) -> None:
        self._closed = True
        for _, future in self._line.hand_back():
            future.cancel()
