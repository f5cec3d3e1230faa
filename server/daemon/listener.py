"""Listening sockets, and uvicorn's server with a polite end: streams are finished before it stops."""

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

from ..config import ServerConfig
from ..errors import ConfigError, ListenError
from ..http.app import Hub, create_app
from ..metrics import limit_repeats
from ..protocol.messages import MAX_FRAME_BYTES
from .tls import load_certificate
from .uvicorn_protocols import MAX_HEADER_BYTES, LingeringWebSocket, PatientHttp

__all__ = ["BACKLOG", "DaemonServer", "bind", "bind_several", "reload", "uvicorn_config"]

# Audio waiting in the kernel while a stream has no room. Small, so that a client's own pings do not
# wait behind minutes of audio; 256 KiB is still eight seconds at 16 kHz.
RECEIVE_BUFFER = 256 * 1024
BACKLOG = 128  # connections that wait to be accepted
FAREWELL_SECONDS = 1.0  # for clients to answer the last close frames

logger = logging.getLogger(__name__)


def bind(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a socket that is bound to the address, and does not listen yet.

    Args:
        host: an address or name of this machine.
        port: 0: any free one.
        shared: other shared sockets may be bound to the same address, and the system deals out connections.

    Raises:
        ListenError: the address cannot be used.
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
    """Return ``count`` listening sockets of one address: each gets its share of the connections.

    Raises:
        ListenError: the address cannot be used.
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


def uvicorn_config(
    app: ASGIApp, config: ServerConfig, refused: Callable[[str], None] = lambda reason: None
) -> uvicorn.Config:
    """Return uvicorn's options for ``app``; ``refused`` is called for what never becomes a request of it."""
    limit_repeats("uvicorn.error")
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
    """A server of uvicorn that finishes the streams before it closes their sockets.

    Args:
        hub: is drained on the first signal; a second signal ends the process at once.
        config: the daemon's options.
        on_ready: called once connections are accepted.
        tls: for wss and https.
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
        """Begin to accept connections, then call ``on_ready``."""
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


def reload(hub: Hub, tls: ssl.SSLContext | None, certificate: str | None, key: str | None) -> None:
    """Read keys and certificates again, on SIGHUP; what cannot be used is logged, and the old stays in use."""
    try:
        hub.reload_keys()
        if tls is not None and certificate is not None:
            load_certificate(tls, certificate, key)
        logger.info("event=reloaded")
    except ConfigError as error:
        logger.error("event=reload_failed: %s; what was in use before still holds", error)
