"""Another process, as the one with the engine serves it: its jobs are run, its other messages passed on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from ...streamer.jobs import DecodeResult
from ..engine import Engine
from .ipc import CancelJob, Channel, JobFailure, JobResult, Message, RunJob
from .shared_audio import SharedAudioSlots

__all__ = ["EngineHost"]


class EngineHost:
    """Belongs to the event loop in which it is made. Every job gets exactly one answer.

    Args:
        audio_slots: where the process puts the audio of its jobs.
        on_message: called with what is not about jobs.
        on_lost: called once the other process is gone.
    """

    def __init__(
        self,
        channel: Channel,
        audio_slots: SharedAudioSlots,
        engine: Engine,
        on_message: Callable[[Message], None],
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.channel = channel
        self._audio_slots = audio_slots
        self._engine = engine
        self._on_message = on_message
        self._jobs: dict[int, Future[DecodeResult]] = {}
        self._on_lost = on_lost
        channel.start(self._take, self._lost)

    @property
    def jobs(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._jobs)

    def close(self) -> None:
        """The other process has ended: nobody wants its results."""
        self.channel.close()
        self._drop_all()

    def _take(self, message: Message) -> None:
        match message:
            case RunJob():
                self._submit(message)
            case CancelJob(id=number):
                if (future := self._jobs.get(number)) is not None:
                    future.cancel()
            case _:
                self._on_message(message)

    def _submit(self, message: RunJob) -> None:
        try:
            future = self._engine.submit(message.job(self._audio_slots))
        except Exception as error:  # noqa: BLE001 - whatever one job does, the others go on
            self.channel.send(JobFailure(id=message.id, error=type(error).__name__))
            return
        self._jobs[message.id] = future
        future.add_done_callback(partial(self._answer, message.id))

    def _answer(self, number: int, future: Future[DecodeResult]) -> None:
        """On the engine's thread, mostly; sending never waits."""
        self._jobs.pop(number, None)
        if future.cancelled():
            self.channel.send(JobFailure(id=number, error=None))
        elif (error := future.exception()) is not None:
            self.channel.send(JobFailure(id=number, error=type(error).__name__))
        else:
            self.channel.send(JobResult(id=number, result=future.result()))

    def _lost(self) -> None:
        self._drop_all()
        self._on_lost()

    def _drop_all(self) -> None:
        for future in list(self._jobs.values()):
            future.cancel()
