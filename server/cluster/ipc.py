"""Messages between the processes of one daemon, and the channel that carries them.

Both ends run the same program on one machine, so the messages need no versions. A message is a length and a
msgpack map; the audio of jobs lies in shared memory (``shared_audio.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...streamer.engine.engine import EngineStatistics
from ...streamer.jobs import DecodeJob, DecodeResult
from ..config import ServerConfig
from ..process_stats import ProcessStats
from .shared_audio import SharedAudioSlots

__all__ = [
    "StartFailed",
    "CancelJob",
    "Channel",
    "CollectStats",
    "StatsTotal",
    "StartEngine",
    "EngineReady",
    "JobFailure",
    "StartIngress",
    "RunJob",
    "Message",
    "IngressReady",
    "StatsReport",
    "JobResult",
    "EngineReport",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class StartIngress(_Message, frozen=True, kw_only=True, tag="start_ingress"):
    """First message to an ingress process.

    Attributes:
        number: of the process, from 0.
        count: of ingress processes.
        folder: of the sockets by which they reach each other.
        model, languages: of the engine.
        statistics: of the engine, so that they are known from the beginning.
        certificate, key: paths, for wss.
    """

    number: int
    count: int
    folder: str
    config: ServerConfig
    model: str
    languages: tuple[str, ...]
    statistics: EngineStatistics
    certificate: str | None = None
    key: str | None = None


class StartEngine(_Message, frozen=True, kw_only=True, tag="start_engine"):
    """First message to an engine process, ``number`` (from 0) of ``count``: load the model of ``config``."""

    number: int
    count: int
    config: ServerConfig


class EngineReady(_Message, frozen=True, kw_only=True, tag="engine_ready"):
    """From an engine process: its model is loaded and warm."""

    model: str
    languages: tuple[str, ...]


class IngressReady(_Message, frozen=True, kw_only=True, tag="ingress_ready"):
    """From an ingress process: it accepts connections."""


class StartFailed(_Message, frozen=True, kw_only=True, tag="start_failed"):
    """From a process that cannot start: the reason, in one sentence."""

    sentence: str


class RunJob(_Message, frozen=True, kw_only=True, tag="run_job"):
    """A job for an engine.

    Attributes:
        slot: of the shared memory that has the audio; None: ``audio`` has it, as little-endian float32.
        fields: of the DecodeJob, all but its audio.
    """

    id: int
    samples: int
    slot: int | None
    audio: bytes = b""
    fields: dict[str, Any]

    @classmethod
    def pack(cls, number: int, job: DecodeJob, slot: int | None) -> RunJob:
        """Return the message for ``job``, whose audio is in ``slot`` already, if that is not None."""
        names = [each.name for each in dataclasses.fields(job) if each.name != "audio"]
        return cls(
            id=number,
            samples=len(job.audio),
            slot=slot,
            audio=job.audio.astype("<f4").tobytes() if slot is None else b"",
            fields={name: getattr(job, name) for name in names},
        )

    def unpack(self, audio_slots: SharedAudioSlots) -> DecodeJob:
        """Return the job as it was; its audio stays in shared memory until the job is answered."""
        if self.slot is None:
            audio: NDArray[np.float32] = np.frombuffer(self.audio, "<f4").copy()
        else:
            audio = audio_slots.view(self.slot, self.samples)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.fields.items()
        }
        return DecodeJob(audio=audio, **fields)


class CancelJob(_Message, frozen=True, kw_only=True, tag="cancel_job"):
    """The result of the job is not wanted any longer."""

    id: int


class JobResult(_Message, frozen=True, kw_only=True, tag="job_result"):
    """The result of a job."""

    id: int
    result: DecodeResult


class JobFailure(_Message, frozen=True, kw_only=True, tag="job_failure"):
    """A job without a result.

    Attributes:
        error: class name of the error that was raised; None: the job was cancelled.
        closed: the process can run no job at all from now on.
    """

    id: int
    error: str | None
    closed: bool = False


class EngineReport(_Message, frozen=True, kw_only=True, tag="engine_report"):
    """From an engine, several times a second: its statistics. The parent passes them on to ingress processes."""

    statistics: EngineStatistics


class CollectStats(_Message, frozen=True, kw_only=True, tag="collect_stats"):
    """From an ingress process: asks for the sum over all. To each process: asks for its own part."""

    id: int


class StatsReport(_Message, frozen=True, kw_only=True, tag="stats_report"):
    """The statistics of one process; ``id`` is that of the request, 0 if there was none."""

    id: int
    stats: ProcessStats


class StatsTotal(_Message, frozen=True, kw_only=True, tag="stats_total"):
    """The sum over all processes."""

    id: int
    stats: ProcessStats


Message = (
    StartIngress
    | StartEngine
    | EngineReady
    | IngressReady
    | StartFailed
    | RunJob
    | CancelJob
    | JobResult
    | JobFailure
    | EngineReport
    | CollectStats
    | StatsReport
    | StatsTotal
)


_LENGTH = struct.Struct("<I")
_BLOCK = 262_144  # bytes read at once

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of the line between two processes. ``send`` may be called from any thread.

    It is read in the event loop. A thread for reading would be simpler, but beside a busy event loop Python
    lets another thread run only every five milliseconds: too seldom for the jobs of a hundred streams.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._lock = threading.Lock()
        self._unsent = bytearray()  # what the socket did not take yet
        self._closed = False

    def receive_first(self) -> Message | None:
        """Wait for one message, before ``start`` is called; None: the other end is gone."""
        self._socket.setblocking(True)
        try:
            head = self._receive_exactly(_LENGTH.size)
            return (
                None
                if head is None
                else self._decode(self._receive_exactly(_LENGTH.unpack(head)[0]))
            )
        finally:
            self._socket.setblocking(False)

    def start(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        """Begin to take messages, in the running event loop.

        Args:
            on_lost: called once the other end is gone, unless this one was closed before.
        """
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read, on_message, on_lost)
        with self._lock:
            self._flush()

    def send(self, message: Message) -> None:
        """Send a message, or have it sent as soon as the socket takes it; dropped after the end."""
        body = _encoder.encode(message)
        with self._lock:
            if self._closed:
                return
            idle = not self._unsent
            self._unsent += _LENGTH.pack(len(body)) + body
            if idle:
                self._flush()

    def close(self) -> None:
        """Write what waits, as far as the other end takes it within a second, and hang up."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._socket)
                self._loop.remove_writer(self._socket)
            with contextlib.suppress(OSError):
                self._socket.settimeout(1.0)
                self._socket.sendall(self._unsent)
        self._socket.close()

    def _flush(self) -> None:
        """Write as much as the socket takes now; the loop writes the rest. The lock must be held."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._await_room)
        except OSError:
            self._unsent.clear()  # reading finds out that the other end is gone

    def _await_room(self) -> None:
        assert self._loop is not None
        if not self._closed:
            self._loop.add_writer(self._socket, self._write)

    def _write(self) -> None:
        assert self._loop is not None
        with self._lock:
            self._loop.remove_writer(self._socket)
            self._flush()

    def _read(self, on_message: Callable[[Message], None], on_lost: Callable[[], None]) -> None:
        try:
            block = self._socket.recv(_BLOCK)
        except BlockingIOError:
            return
        except OSError:
            block = b""
        if not block:
            self.close()
            on_lost()
            return
        self._received += block
        at = 0
        while (message := self._next(at)) is not None:
            at, body = message
            on_message(_decoder.decode(body))
            if self._closed:
                return
        del self._received[:at]

    def _next(self, at: int) -> tuple[int, bytes] | None:
        """Return the end and the body of the message that begins at ``at``; None: it is not complete."""
        start = at + _LENGTH.size
        if len(self._received) < start:
            return None
        end = start + _LENGTH.unpack_from(self._received, at)[0]
        return (end, bytes(self._received[start:end])) if len(self._received) >= end else None

    def _receive_exactly(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            with contextlib.suppress(ConnectionError):
                part = self._socket.recv(size - len(data))
                if part:
                    data += part
                    continue
            return None
        return data

    def _decode(self, body: bytes | None) -> Message | None:
        return None if body is None else _decoder.decode(body)
