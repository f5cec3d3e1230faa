"""Websockets as uvicorn reads them, at less cost for streams of small frames.

Sockets and uvicorn: listening, closing politely, stopping gracefully.

SIGHUP: keys and certificates are read again while the daemon runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from ..config import ServerConfig
from ..errors import ConfigError, ListenError
from ..http.app import Hub, create_app
from ..metrics import SELDOM
from ..protocol.messages import MAX_FRAME_BYTES
from .tls import load_certificate

__all__ = [
    "DaemonServer",
    "READ_AHEAD_BYTES",
    "READ_AHEAD_FRAMES",
    "ReadAheadWebSocket",
    "bind",
    "bind_several",
    "reload",
    "uvicorn_config",
]

# Waiting for the stream that they belong to. More stays in the kernel, and TCP holds up the sender.
READ_AHEAD_FRAMES = 8
READ_AHEAD_BYTES = 16 * 1024  # of one frame


class ReadAheadWebSocket(WebSocketsSansIOProtocol):
    """Reads a few small frames ahead.

    Stopping to read after every frame, and beginning again, costs two system calls, for each tenth of
    a second of every stream.
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


# Audio waiting in the kernel while a stream has no room. Small, so that a client's own pings do not
# wait behind minutes of audio; 256 KiB is still eight seconds at 16 kHz.
RECEIVE_BUFFER = 256 * 1024
MAX_HEADER_BYTES = 16 * 1024  # of a request
BACKLOG = 128  # connections that wait to be accepted
LINGER_SECONDS = (
    5.0  # for a client to see why it is closed: to read on, and for its own close frame
)
FAREWELL_SECONDS = 1.0  # for clients to answer the last close frames


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket bound to the address, not listening yet; raises ListenError.

    Args:
        shared: other ``shared`` sockets may be bound to it too, and the system deals out connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise ListenError(host, port, error) from None
    return sock


def bind_several(host: str, port: int, count: int) -> list[socket.socket]:
    """Return so many sockets of one address, listening: each gets its share of the connections.

    Raises ListenError.
    """
    # One that is not shared first: it fails where another daemon listens, shared or not.
    with bind(host, port) as probe:
        port = probe.getsockname()[1]
    bound: list[socket.socket] = []
    try:
        for _ in range(count):
            bound.append(bind(host, port, shared=True))
            bound[-1].listen(BACKLOG)
    except OSError as error:
        for sock in bound:
            sock.close()
        raise ListenError(host, port, error) from None
    return bound


class LingeringWebSocket(ReadAheadWebSocket):
    """A refusal is no fault of ours: it is not logged as one.

    After a frame that breaks the websocket rules, reads on until the client has seen the close.

    Closing a socket with unread data resets it, and the client would never learn the reason.
    """

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = LINGER_SECONDS

    async def send(self, message: ASGISendEvent) -> None:
        """Send to the client; the last piece of a refusal completes the handshake too."""
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
    """Closes connections whose request takes too long to come: each would hold a descriptor for ever."""

    patience = 10.0  # seconds
    refused: Callable[[str], None] = staticmethod(lambda reason: None)  # is told of each
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
        """Answer what is no request."""
        self.refused("bad_request")
        super().send_400_response(msg)


def uvicorn_config(
    app: ASGIApp, config: ServerConfig, refused: Callable[[str], None] = lambda reason: None
) -> uvicorn.Config:
    """Return how ``app`` is served; ``refused`` is told of what never becomes a request of it."""
    logging.getLogger("uvicorn.error").addFilter(SELDOM)
    settings = {"patience": config.handshake_timeout, "refused": staticmethod(refused)}
    http = type("PatientHttp", (PatientHttp,), settings)
    return uvicorn.Config(
        app,
        http=http,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        ws=LingeringWebSocket,
        ws_max_size=MAX_FRAME_BYTES,
        # A pong waits behind audio that waits for room: its lateness proves nothing.
        ws_ping_timeout=None,
        ws_per_message_deflate=False,
        lifespan="off",
        log_config=None,
        # Below warnings it logs frames, and addresses with the keys in them.
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )


class DaemonServer(uvicorn.Server):
    """uvicorn, with streams finished before their sockets are closed.

    Args:
        hub: told to drain on the first signal; a second signal ends the process at once.
        on_ready: called once connections are accepted.
    """

    def __init__(
        self,
        hub: Hub,
        config: ServerConfig,
        on_ready: Callable[[], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(uvicorn_config(create_app(hub), config, hub.metrics.refuse))
        self.config.load()
        self.config.ssl = tls
        self._hub = hub
        self._drain_seconds = config.drain_seconds
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start accepting, then say so."""
        self._hub.start()
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let every stream finish, then close what is left."""
        await self._hub.drain(self._drain_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while self.server_state.connections:  # noqa: ASYNC110 - uvicorn signals no event
                    await asyncio.sleep(0.02)
        await super().shutdown(sockets)

    def request_exit(self) -> None:
        """Stop as the first signal would; from any thread."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully on the first signal, at once on the second."""
        if self.should_exit:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self.should_exit = True


logger = logging.getLogger(__name__)


def reload(hub: Hub, tls: ssl.SSLContext | None, certificate: str | None, key: str | None) -> None:
    """Read keys and certificates again; what cannot be used is told, and the old stays."""
    try:
        hub.reload_keys()
        if tls is not None and certificate is not None:
            load_certificate(tls, certificate, key)
        logger.info("event=reloaded")
    except ConfigError as error:
        logger.error("event=reload_failed: %s; what was in use before still holds", error)
