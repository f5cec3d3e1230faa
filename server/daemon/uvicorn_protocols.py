"""Connections as uvicorn serves them, changed in three ways: read ahead, linger after a fault, time out.

This is the one file that relies on private parts of uvicorn. ``pyproject.toml`` bounds its versions, and
``tests/server/daemon/test_uvicorn_protocols.py`` names each part and fails if one is gone:

* of ``WebSocketsSansIOProtocol``: that ``send_receive_event_to_app`` queues the message in ``frames`` and stops
  reading unless ``read_paused`` is set; that ``handle_parser_exception`` is called with a close frame queued in
  ``conn``; ``close_timer``, ``close_timeout``, ``close_sent``, ``handshake_complete``, ``queue``
* of ``H11Protocol``: that ``on_response_complete`` and ``send_400_response`` are called as their names say;
  ``cycle`` is the present request
* of both: ``transport`` and ``loop``
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

__all__ = [
    "MAX_HEADER_BYTES",
    "READ_AHEAD_BYTES",
    "READ_AHEAD_FRAMES",
    "LingeringWebSocket",
    "PatientHttp",
    "ReadAheadWebSocket",
]

MAX_HEADER_BYTES = 16 * 1024  # of a request
# Frames that wait for their stream. More stays in the kernel, and TCP holds up the sender.
READ_AHEAD_FRAMES = 8
READ_AHEAD_BYTES = 16 * 1024  # of one frame
# For a client to see why it is closed: to read on, and for its own close frame.
LINGER_SECONDS = 5.0


class ReadAheadWebSocket(WebSocketsSansIOProtocol):
    """A websocket that reads a few small frames ahead.

    uvicorn stops reading after every frame, and begins again once it is taken: two system calls for each
    tenth of a second of every stream.
    """

    def send_receive_event_to_app(self) -> None:
        """Queue a message that is complete; stop reading if much waits."""
        small = sum(len(frame) for frame in self.frames) <= READ_AHEAD_BYTES
        if small and not self.read_paused and self.queue.qsize() < READ_AHEAD_FRAMES:
            self.read_paused = True  # so that it is not paused by what follows
            super().send_receive_event_to_app()
            self.read_paused = False
        else:
            super().send_receive_event_to_app()


class LingeringWebSocket(ReadAheadWebSocket):
    """A websocket that reads on after a frame that breaks the websocket rules, until the client has seen the close.

    Closing a socket with unread data resets it, and the client would never learn the reason.
    A refused handshake counts as complete here, so that uvicorn does not log it as a fault of the daemon.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = LINGER_SECONDS

    async def send(self, message: ASGISendEvent) -> None:
        """Send to the client. The last piece of a refusal completes the handshake too."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def handle_parser_exception(self) -> None:
        """Send the close frame and the end of the stream, then discard what still comes."""
        if self.close_timer is not None:
            return
        assert self.conn.close_sent is not None  # the parser failed, so it has queued a close
        close = self.conn.close_sent
        self.queue.put_nowait(
            {"type": "websocket.disconnect", "code": close.code, "reason": close.reason}
        )
        self.transport.write(b"".join(self.conn.data_to_send()))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.close_sent = True
        self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)


class PatientHttp(H11Protocol):
    """HTTP that closes connections whose request takes too long: each would hold a descriptor for ever.

    Attributes:
        patience: seconds that a request may take.
        refused: called with the reason, for each connection that is closed.
    """

    patience = 10.0
    refused: Callable[[str], None] = staticmethod(lambda reason: None)
    _head: bytes
    _head_seen: bool
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Refuse a request whose head is too long, even if it comes in one piece."""
        if not self._head_seen:
            self._head += data[: MAX_HEADER_BYTES + 1]
            self._head_seen = b"\r\n\r\n" in self._head[:MAX_HEADER_BYTES]
            if not self._head_seen and len(self._head) > MAX_HEADER_BYTES:
                self.send_400_response("The request's head is too long.")
                return
            if self._head_seen:
                self._head = b""
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Another request may come on the same connection."""
        self._timer.cancel()
        self._await_head()
        super().on_response_complete()

    def _await_head(self) -> None:
        self._head = b""  # of the request, until it is whole
        self._head_seen = False
        self._timer = self.loop.call_later(self.patience, self._look)

    def _look(self) -> None:
        transport = self.transport
        served = self.cycle is not None and not self.cycle.response_complete
        if served or transport.get_protocol() is not self or transport.is_closing():
            return
        if self._head or self.cycle is None:
            self.refused("slow_request")
        transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not a request."""
        self.refused("bad_request")
        super().send_400_response(msg)
