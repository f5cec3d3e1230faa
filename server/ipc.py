"""What the ingress processes and the engine's process tell each other, and how it travels between them.

A frame is two lengths (little-endian, 32 bits each), a msgpack map with its ``type``, and raw audio
(float32, little-endian) where the message is a job. Both ends are the same program on one machine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import queue
import socket
import struct
import threading
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..streamer.jobs import DecodeJob, DecodeResult
from .config import ServerConfig
from .figures import Figures

__all__ = [
    "Broken",
    "Cancel",
    "Channel",
    "Collect",
    "Collected",
    "Failure",
    "Hello",
    "Job",
    "Message",
    "Ready",
    "Report",
    "Result",
    "Statistics",
]

_LENGTHS = struct.Struct("<II")
_NO_AUDIO: NDArray[np.float32] = np.zeros(0, np.float32)


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """To an ingress process, first: who it is, and what the daemon was asked for."""

    number: int  # from 0
    count: int  # ingress processes in all
    folder: str  # of the sockets by which they reach each other
    config: ServerConfig
    model: str
    languages: tuple[str, ...]
    certificate: str | None = None  # paths
    key: str | None = None


class Ready(_Message, frozen=True, kw_only=True, tag="ready"):
    """From an ingress process: it accepts connections."""


class Broken(_Message, frozen=True, kw_only=True, tag="broken"):
    """From an ingress process: why it cannot start, in one sentence."""

    sentence: str


class Job(_Message, frozen=True, kw_only=True, tag="job"):
    """A job without its audio, which follows."""

    id: int
    fields: dict[str, Any]

    @classmethod
    def of(cls, number: int, job: DecodeJob) -> Job:
        names = [each.name for each in dataclasses.fields(job) if each.name != "audio"]
        return cls(id=number, fields={name: getattr(job, name) for name in names})

    def job(self, audio: NDArray[np.float32]) -> DecodeJob:
        fields = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.fields.items()
        }
        return DecodeJob(audio=audio, **fields)


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Nobody wants the job's result any more."""

    id: int


class Result(_Message, frozen=True, kw_only=True, tag="result"):
    id: int
    result: DecodeResult


class Failure(_Message, frozen=True, kw_only=True, tag="failure"):
    """The job raised ``error``, a class's name; None: it was cancelled."""

    id: int
    error: str | None


class Statistics(_Message, frozen=True, kw_only=True, tag="statistics"):
    """To the ingress processes, several times a second: what the engine's statistics() gave."""

    fields: dict[str, int | float]


class Collect(_Message, frozen=True, kw_only=True, tag="collect"):
    """From an ingress process: what are the figures of the whole daemon? To each of them: what are yours?"""

    id: int


class Report(_Message, frozen=True, kw_only=True, tag="report"):
    """The answer of one ingress process; ``id`` is 0 where nobody asked."""

    id: int
    figures: Figures


class Collected(_Message, frozen=True, kw_only=True, tag="collected"):
    """The figures of all processes together."""

    id: int
    figures: Figures


Message = (
    Hello
    | Ready
    | Broken
    | Job
    | Cancel
    | Result
    | Failure
    | Statistics
    | Collect
    | Report
    | Collected
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of the line between two processes.

    ``send`` may be called from any thread and never waits: a thread of the channel's own writes.
    ``receive`` belongs to one thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        # What waits to be written; None ends the thread.
        self._waiting: queue.SimpleQueue[tuple[Message, NDArray[np.float32]] | None] = (
            queue.SimpleQueue()
        )
        self._writer = threading.Thread(target=self._write, name="channel", daemon=True)
        self._writer.start()

    def send(self, message: Message, audio: NDArray[np.float32] = _NO_AUDIO) -> None:
        """Queue a message; after the other end is gone it is dropped."""
        self._waiting.put((message, audio))

    def receive(self) -> tuple[Message, NDArray[np.float32]] | None:
        """Return the next message and its audio [n], or None once the other end is gone."""
        try:
            head = bytearray(_LENGTHS.size)
            self._fill(memoryview(head))
            size, samples = _LENGTHS.unpack(head)
            body = bytearray(size)
            self._fill(memoryview(body))
            audio = np.empty(samples, "<f4")
            self._fill(memoryview(audio).cast("B") if samples else memoryview(b""))
        except (EOFError, OSError):
            return None
        return _decoder.decode(body), audio

    def close(self) -> None:
        """Write what waits, and hang up."""
        self._waiting.put(None)
        self._writer.join()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _fill(self, view: memoryview) -> None:
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]

    def _write(self) -> None:
        while (next_one := self._waiting.get()) is not None:
            message, audio = next_one
            body = _encoder.encode(message)
            head = _LENGTHS.pack(len(body), len(audio))
            try:
                self._socket.sendall(head + body)
                if len(audio):
                    self._socket.sendall(memoryview(np.ascontiguousarray(audio, "<f4")).cast("B"))
            except OSError:
                return  # whoever reads finds out that the other end is gone
