"""Jobs on their way to another process, and their results on the way back. No torch.

The engine as an ingress process sees it: jobs go to another process, and results come back. No torch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from ...model.whisper.tokenizer import Tokenizer, get_tokenizer
from ...streamer.audio.vad import make_detector
from ...streamer.config import StreamConfig
from ...streamer.engine.engine import EngineStatistics
from ...streamer.errors import EngineClosedError
from ...streamer.jobs import DecodeJob, DecodeResult
from ...streamer.session.session import StreamSession
from ..errors import RemoteJobError
from ..process_stats import ProcessStats
from .ipc import (
    CancelJob,
    Channel,
    CollectStats,
    EngineReport,
    IngressReady,
    JobFailure,
    JobResult,
    Message,
    RunJob,
    StartIngress,
    StatsReport,
    StatsTotal,
)
from .shared_audio import SharedAudioSlots

__all__ = ["JobLine", "RemoteEngine", "text_codec"]

# the error of a process whose engine has ended, or is about to
_ENGINE_CLOSED = EngineClosedError.__name__


class JobLine:
    """Belongs to one event loop.

    Args:
        channel: to a process that runs jobs (``engine_host.py``).
        audio_slots: where it reads their audio.
        on_dropped: called with a job that the process gave up as it can run none any more.
    """

    def __init__(
        self,
        channel: Channel,
        audio_slots: SharedAudioSlots,
        on_dropped: Callable[[DecodeJob, Future[DecodeResult]], object] = lambda job, future: (
            future.cancel()
        ),
    ) -> None:
        self._channel = channel
        self._audio_slots = audio_slots
        self._on_dropped = on_dropped
        self._numbers = itertools.count(1)
        self._jobs: dict[int, tuple[DecodeJob, Future[DecodeResult]]] = {}
        self._slots: dict[int, int] = {}  # of jobs that are not answered, wanted or not

    @property
    def out(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._jobs)

    def submit(
        self, job: DecodeJob, future: Future[DecodeResult] | None = None
    ) -> Future[DecodeResult]:
        """Send ``job`` on its way; ``future`` is answered, or a new one.

        Cancelling it drops the job there, if it has not begun.
        """
        future = Future() if future is None else future
        number = next(self._numbers)
        self._jobs[number] = job, future
        slot = self._audio_slots.put(job.audio)
        if slot is not None:
            self._slots[number] = slot
        future.add_done_callback(partial(self._given_up, number))
        self._channel.send(RunJob.of(number, job, slot))
        return future

    def take(self, message: Message) -> bool:
        """Take a message that answers a job; False: it is about something else."""
        match message:
            case JobResult(id=number, result=result):
                self._answer(number, result)
            case JobFailure(id=number, error=name):
                dropped = name is None or name == _ENGINE_CLOSED
                self._answer(number, None if dropped else RemoteJobError(name or ""))
            case _:
                return False
        return True

    def end(self) -> list[tuple[DecodeJob, Future[DecodeResult]]]:
        """The other process is gone -> the jobs that it has not answered."""
        unanswered, self._jobs = self._jobs, {}
        self._slots.clear()
        return list(unanswered.values())

    def _given_up(self, number: int, future: Future[DecodeResult]) -> None:
        if future.cancelled() and self._jobs.pop(number, None) is not None:
            self._channel.send(CancelJob(id=number))

    def _answer(self, number: int, answer: DecodeResult | Exception | None) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._audio_slots.free(slot)
        known = self._jobs.pop(number, None)
        if known is None:
            return  # given up meanwhile
        job, future = known
        if answer is None:
            self._on_dropped(job, future)
        elif not future.set_running_or_notify_cancel():
            return  # given up at this very moment
        elif isinstance(answer, DecodeResult):
            future.set_result(answer)
        else:
            future.set_exception(answer)


_LANGUAGES = 99  # of a multilingual vocabulary that says nothing else
_COLLECT_SECONDS = 2.0


def text_codec(languages: Sequence[str]) -> Tokenizer:
    """What streams need of the tokenizer of a model with these languages; none: of an English one."""
    return get_tokenizer(bool(languages), num_languages=max(_LANGUAGES, len(languages)))


class RemoteEngine:
    """All methods belong to one event loop.

    Args:
        channel: to the engine's process, which has said ``hello``.
        audio_slots: where it reads the audio of jobs.
        on_lost: called once that process is gone.
    """

    def __init__(
        self,
        channel: Channel,
        audio_slots: SharedAudioSlots,
        hello: StartIngress,
        on_lost: Callable[[], None],
    ) -> None:
        self.model_name = hello.model
        self.languages = hello.languages
        # Asked by the engine's process for the figures of this one; on the event loop. Set by Hub.
        self.figures: Callable[[], ProcessStats] = ProcessStats
        self._channel = channel
        self._line = JobLine(channel, audio_slots)
        self._on_lost = on_lost
        # Loaded now: no stream's first prompt should wait for it.
        self._codec = text_codec(hello.languages)
        self._numbers = itertools.count(1)
        self._collecting: dict[int, asyncio.Future[ProcessStats]] = {}
        self._statistics: dict[str, int | float] = {}
        self._closed = False

    def start(self) -> None:
        """Begin to take results, in the running event loop."""
        self._channel.start(self._take, self._lost)

    def new_session(self, config: StreamConfig) -> StreamSession:
        """Raises DetectorError where its detector is missing."""
        return StreamSession(config, make_detector(config.detector), self._codec)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Send ``job`` on its way. Cancelling the future drops it there, if it has not begun.

        Raises EngineClosedError once the other process is gone.
        """
        if self._closed:
            raise EngineClosedError
        return self._line.submit(job)

    def statistics(self) -> object:
        """What the engine said of itself, at most a moment ago."""
        fields = self._statistics
        if set(fields) == set(EngineStatistics._fields):
            return EngineStatistics(**fields)  # type: ignore[arg-type]
        return fields

    async def collect(self) -> ProcessStats | None:
        """Return the figures of all processes; None if they do not come in time."""
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

    def ready(self) -> None:
        """Tell the engine's process that connections are accepted here."""
        self._channel.send(IngressReady())

    def report(self, number: int = 0) -> None:
        """Tell the engine's process the figures of this one."""
        self._channel.send(StatsReport(id=number, figures=self.figures()))

    def close(self) -> None:
        """Hang up. What is not answered yet is cancelled."""
        self._end()
        self._channel.close()

    def _take(self, message: Message) -> None:
        if self._line.take(message):
            return
        match message:
            case EngineReport(fields=fields):
                self._statistics = fields
            case CollectStats(id=number):
                self.report(number)
            case StatsTotal(id=number, figures=figures):
                self._collected(number, figures)

    def _lost(self) -> None:
        if not self._closed:
            self._end()
            self._on_lost()

    def _collected(self, number: int, figures: ProcessStats) -> None:
        future = self._collecting.get(number)
        if future is not None and not future.done():
            future.set_result(figures)

    def _end(self) -> None:
        self._closed = True
        for _, future in self._line.end():
            future.cancel()
