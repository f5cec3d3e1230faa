"""Jobs on their way to another process, and their results on the way back. No torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ..streamer.engine import FATAL
from ..streamer.errors import EngineClosedError
from ..streamer.jobs import DecodeJob, DecodeResult
from .arena import Arena
from .channel import Channel
from .errors import RemoteJobError
from .ipc import Cancel, Failure, Job, Message, Result

__all__ = ["JobLine"]

# errors of a process whose engine has ended, or is about to
_LAST_WORDS = FATAL | {EngineClosedError.__name__}


class JobLine:
    """Belongs to one event loop.

    Args:
        channel: to a process that runs jobs (``engine_host.py``).
        arena: where it reads their audio.
        on_dropped: called with a job that the process gave up as it can run none any more.
    """

    def __init__(
        self,
        channel: Channel,
        arena: Arena,
        on_dropped: Callable[[DecodeJob, Future[DecodeResult]], object] = lambda job, future: (
            future.cancel()
        ),
    ) -> None:
        self._channel = channel
        self._arena = arena
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
        slot = self._arena.put(job.audio)
        if slot is not None:
            self._slots[number] = slot
        future.add_done_callback(partial(self._given_up, number))
        self._channel.send(Job.of(number, job, slot))
        return future

    def take(self, message: Message) -> bool:
        """Take a message that answers a job; False: it is about something else."""
        match message:
            case Result(id=number, result=result):
                self._answer(number, result)
            case Failure(id=number, error=name):
                dropped = name is None or name in _LAST_WORDS
                self._answer(number, None if dropped else RemoteJobError.named(name or ""))
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
            self._channel.send(Cancel(id=number))

    def _answer(self, number: int, answer: DecodeResult | Exception | None) -> None:
        slot = self._slots.pop(number, None)
        if slot is not None:
            self._arena.free(slot)
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
