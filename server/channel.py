"""The line between two processes of a daemon: messages, each a length and a msgpack map.

Read in an event loop, and written from any thread without waiting. Threads of its own would be simpler,
but beside a busy event loop Python lets another thread in only every five milliseconds: too seldom for
the jobs of a hundred streams.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable

import msgspec

from .ipc import Message

__all__ = ["Channel"]

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
