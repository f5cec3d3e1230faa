"""One ingress process, as the engine's process serves it: its jobs are run, its other messages passed on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..streamer.jobs import DecodeResult
from .interfaces import Engine
from .ipc import Cancel, Channel, Failure, Job, Message, Result

__all__ = ["EngineHost"]


class EngineHost:
    """Reads the channel on a thread of its own until the other process is gone.

    Args:
        on_message: called on that thread with what is not about jobs.
    """

    def __init__(
        self, channel: Channel, engine: Engine, on_message: Callable[[Message], None]
    ) -> None:
        self.channel = channel
        self._engine = engine
        self._on_message = on_message
        self._lock = threading.Lock()
        self._jobs: dict[int, Future[DecodeResult]] = {}
        self._reader = threading.Thread(target=self._read, name="ingress-jobs", daemon=True)
        self._reader.start()

    @property
    def jobs(self) -> int:
        """Jobs that are not answered yet."""
        return len(self._jobs)

    def close(self) -> None:
        """The other process has ended: nobody wants its results."""
        self.channel.close()
        self._reader.join()

    def _read(self) -> None:
        while (received := self.channel.receive()) is not None:
            message, audio = received
            match message:
                case Job():
                    self._submit(message, audio)
                case Cancel(id=number):
                    with self._lock:
                        future = self._jobs.get(number)
                    if future is not None:
                        future.cancel()
                case _:
                    self._on_message(message)
        with self._lock:
            waiting, self._jobs = self._jobs, {}
        for future in waiting.values():
            future.cancel()

    def _submit(self, message: Job, audio: NDArray[np.float32]) -> None:
        try:
            future = self._engine.submit(message.job(audio))
        except Exception as error:  # noqa: BLE001 - whatever one job does, the others go on
            self.channel.send(Failure(id=message.id, error=type(error).__name__))
            return
        with self._lock:
            self._jobs[message.id] = future
        future.add_done_callback(partial(self._answer, message.id))

    def _answer(self, number: int, future: Future[DecodeResult]) -> None:
        """On the engine's thread: it only queues what the channel's own thread will encode."""
        with self._lock:
            self._jobs.pop(number, None)
        if future.cancelled():
            self.channel.send(Failure(id=number, error=None))
        elif (error := future.exception()) is not None:
            self.channel.send(Failure(id=number, error=type(error).__name__))
        else:
            self.channel.send(Result(id=number, result=future.result()))
