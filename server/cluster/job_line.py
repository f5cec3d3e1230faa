"""The near side of jobs that run in another process: sent there, answered here, handed back if it ends."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ...model.whisper.tokenizer import get_tokenizer
from ...streamer.audio.vad import make_detector
from ...streamer.config import StreamConfig
from ...streamer.jobs import DecodeJob, DecodeResult
from ...streamer.session.session import StreamSession
from ..engine import Session
from ..errors import RemoteJobError
from .ipc import CancelJob, Channel, JobFailure, JobResult, Message, RunJob
from .shared_audio import SharedAudioSlots

__all__ = ["JobLine", "RemoteSessions"]

_LANGUAGES = 99  # of a multilingual vocabulary that does not say


class RemoteSessions:
    """Makes the streams of a model that another process has: they need no more of it than its tokenizer.

    Args:
        languages: that the model knows; none: it knows English only.
    """

    def __init__(self, languages: tuple[str, ...]) -> None:
        # Loaded now: no stream's first prompt should wait for it.
        self._codec = get_tokenizer(bool(languages), num_languages=max(_LANGUAGES, len(languages)))

    def new_session(self, config: StreamConfig) -> Session:
        """Return a new stream; raises DetectorError where its speech detector cannot be had."""
        return StreamSession(config, make_detector(config.detector), self._codec)


class JobLine:
    """The jobs that one other process runs for this one. Belongs to one event loop.

    Args:
        channel: to the process that runs them (``engine_host.py`` is the other end).
        audio_slots: from which it reads their audio.
        on_dropped: called with a job that the process will not run, as it can run none.
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
        self._slots: dict[int, int] = {}  # of jobs without an answer, wanted or not

    def __len__(self) -> int:
        """Return the number of jobs without an answer."""
        return len(self._jobs)

    def submit(
        self, job: DecodeJob, future: Future[DecodeResult] | None = None
    ) -> Future[DecodeResult]:
        """Send ``job``; return ``future``, or a new one, which gets the result.

        Cancelling the future drops the job in the other process, if it has not begun.
        """
        future = Future() if future is None else future
        number = next(self._numbers)
        self._jobs[number] = job, future
        slot = self._audio_slots.put(job.audio)
        if slot is not None:
            self._slots[number] = slot
        future.add_done_callback(partial(self._cancel, number))
        self._channel.send(RunJob.pack(number, job, slot))
        return future

    def take(self, message: Message) -> bool:
        """Take a message that answers a job; False: it is about something else."""
        match message:
            case JobResult(id=number, result=result):
                self._answer(number, result)
            case JobFailure(id=number, error=None) | JobFailure(id=number, closed=True):
                self._answer(number, None)
            case JobFailure(id=number, error=str(name)):
                self._answer(number, RemoteJobError(name))
            case _:
                return False
        return True

    def hand_back(self) -> list[tuple[DecodeJob, Future[DecodeResult]]]:
        """Return the jobs without an answer, and forget them: the other process is gone."""
        unanswered, self._jobs = self._jobs, {}
        self._slots.clear()
        return list(unanswered.values())

    def _cancel(self, number: int, future: Future[DecodeResult]) -> None:
        if future.cancelled() and self._jobs.pop(number, None) is not None:
            self._channel.send(CancelJob(id=number))

    def _answer(self, number: int, answer: DecodeResult | Exception | None) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._audio_slots.free(slot)
        known = self._jobs.pop(number, None)
        if known is None:
            return  # cancelled meanwhile
        job, future = known
        if answer is None:
            self._on_dropped(job, future)
        elif not future.set_running_or_notify_cancel():
            return  # cancelled at this very moment
        elif isinstance(answer, DecodeResult):
            future.set_result(answer)
        else:
            future.set_exception(answer)
