"""The engine's side of jobs that another process sends: they are run, and every job gets exactly one answer."""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Future
from functools import partial

from ...streamer.errors import EngineClosedError
from ...streamer.jobs import DecodeResult
from ..engine import Engine
from .ipc import CancelJob, Channel, JobFailure, JobResult, Message, RunJob
from .shared_audio import SharedAudioSlots

__all__ = ["EngineHost"]


class EngineHost:
    """Runs the jobs of one other process. Belongs to the event loop in which it is made.

    Results come on a thread of the engine. They are sent from there, which never waits, so that no result
    waits for a busy event loop; everything else about a job happens on the loop.

    Args:
        channel: to the process whose jobs are run (``job_line.py`` is the other end).
        audio_slots: that the process writes the audio of its jobs into.
        engine: runs them.
    """

    def __init__(self, channel: Channel, audio_slots: SharedAudioSlots, engine: Engine) -> None:
        self._channel = channel
        self._audio_slots = audio_slots
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._jobs: dict[int, Future[DecodeResult]] = {}  # those without an answer

    def take(self, message: Message) -> bool:
        """Take a message about a job; False: it is about something else."""
        match message:
            case RunJob():
                self._submit(message)
            case CancelJob(id=number):
                if (future := self._jobs.get(number)) is not None:
                    future.cancel()
            case _:
                return False
        return True

    def cancel_all(self) -> None:
        """Cancel every job: the other process is gone."""
        for future in list(self._jobs.values()):
            future.cancel()

    def _submit(self, message: RunJob) -> None:
        try:
            future = self._engine.submit(message.unpack(self._audio_slots))
        except Exception as error:  # noqa: BLE001 - one job may fail in any way, and the others go on
            self._channel.send(_failure(message.id, error))
            return
        self._jobs[message.id] = future
        future.add_done_callback(partial(self._answer, message.id))

    def _answer(self, number: int, future: Future[DecodeResult]) -> None:
        """Send the outcome of a job; on the engine's thread, mostly."""
        if future.cancelled():
            self._channel.send(JobFailure(id=number, error=None))
        elif (error := future.exception()) is not None:
            self._channel.send(_failure(number, error))
        else:
            self._channel.send(JobResult(id=number, result=future.result()))
        with contextlib.suppress(RuntimeError):  # the loop has ended, and this object with it
            self._loop.call_soon_threadsafe(self._jobs.pop, number, None)


def _failure(number: int, error: BaseException) -> JobFailure:
    closed = isinstance(error, EngineClosedError)
    return JobFailure(id=number, error=type(error).__name__, closed=closed)
