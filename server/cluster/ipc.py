"""What the processes of one daemon tell each other: those with streams, those with a model, and their parent.

Both ends are the same program on one machine. Audio lies in memory that both see (``audio_slots.py``).

The line between two processes of a daemon: messages, each a length and a msgpack map.

Read in an event loop, and written from any thread without waiting. Threads of its own would be simpler,
but beside a busy event loop Python lets another thread in only every five milliseconds: too seldom for
the jobs of a hundred streams.
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
    """To an ingress process, first: who it is, and what the daemon was asked for."""

    number: int  # from 0
    count: int  # ingress processes in all
    folder: str  # of the sockets by which they reach each other
    config: ServerConfig
    model: str
    languages: tuple[str, ...]
    certificate: str | None = None  # paths
    key: str | None = None


class StartEngine(_Message, frozen=True, kw_only=True, tag="start_engine"):
    """To an engine process, first: the model to load."""

    number: int  # from 0
    count: int  # engine processes in all
    config: ServerConfig


class EngineReady(_Message, frozen=True, kw_only=True, tag="engine_ready"):
    """From an engine process: its model is loaded and warm."""

    model: str
    languages: tuple[str, ...]


class IngressReady(_Message, frozen=True, kw_only=True, tag="ingress_ready"):
    """From an ingress process: it accepts connections."""


class StartFailed(_Message, frozen=True, kw_only=True, tag="start_failed"):
    """From either kind of process: why it cannot start, in one sentence."""

    sentence: str


class RunJob(_Message, frozen=True, kw_only=True, tag="run_job"):
    """A job. ``slot`` of the audio_slots has its audio; None: ``audio`` has it, as float32."""

    id: int
    samples: int
    slot: int | None
    audio: bytes = b""
    fields: dict[str, Any]  # all others of DecodeJob

    @classmethod
    def of(cls, number: int, job: DecodeJob, slot: int | None) -> RunJob:
        names = [each.name for each in dataclasses.fields(job) if each.name != "audio"]
        return cls(
            id=number,
            samples=len(job.audio),
            slot=slot,
            audio=job.audio.astype("<f4").tobytes() if slot is None else b"",
            fields={name: getattr(job, name) for name in names},
        )

    def job(self, audio_slots: SharedAudioSlots) -> DecodeJob:
        """The job as it was; its audio stays in the audio_slots until it is answered."""
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
    """Nobody wants the job's result any more."""

    id: int


class JobResult(_Message, frozen=True, kw_only=True, tag="job_result"):
    id: int
    result: DecodeResult


class JobFailure(_Message, frozen=True, kw_only=True, tag="job_failure"):
    """The job raised ``error``, a class's name; None: it was cancelled."""

    id: int
    error: str | None


class EngineReport(_Message, frozen=True, kw_only=True, tag="engine_report"):
    """To the ingress processes, and from those of engines, several times a second: what statistics() gave."""

    fields: dict[str, int | float]


class CollectStats(_Message, frozen=True, kw_only=True, tag="collect_stats"):
    """From an ingress process: what are the figures of the whole daemon? To each of them: what are yours?"""

    id: int


class StatsReport(_Message, frozen=True, kw_only=True, tag="stats_report"):
    """What one process has counted and used; ``id`` is 0 where nobody asked."""

    id: int
    figures: ProcessStats


class StatsTotal(_Message, frozen=True, kw_only=True, tag="stats_total"):
    """The figures of all processes together."""

    id: int
    figures: ProcessStats


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
    """One end."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.setblocking(False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._lock = threading.Lock()
        self._unsent = bytearray()  # what the socket did not take yet
        self._closed = False

    def first(self) -> Message | None:
        """Wait for one message, before ``start``; None: the other end is gone."""
        self._socket.setblocking(True)
        try:
            head = self._exactly(_LENGTH.size)
            return None if head is None else self._decode(self._exactly(_LENGTH.unpack(head)[0]))
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
        """Hand over what the socket takes now; the loop does the rest. Call it with the lock."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._await_room)
        except OSError:
            self._unsent.clear()  # whoever reads finds out that the other end is gone

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
        """The message that begins at ``at``, and where it ends, if all of it is there."""
        start = at + _LENGTH.size
        if len(self._received) < start:
            return None
        end = start + _LENGTH.unpack_from(self._received, at)[0]
        return (end, bytes(self._received[start:end])) if len(self._received) >= end else None

    def _exactly(self, size: int) -> bytes | None:
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
