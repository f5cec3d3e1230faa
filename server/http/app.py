"""The ASGI application: websocket routes, HTTP routes, and the streams that are open."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from ..cluster.routing import ACCOUNT_HEADER
from ..cluster.topology import SingleProcess
from ..config import ServerConfig
from ..engine import Engine
from ..metrics import Metrics
from ..process_stats import ProcessStats, measure_process
from ..protocol.codec import Codec, codec_for
from ..protocol.errors import ErrorCode
from ..protocol.messages import STREAM_PATH, SUBPROTOCOLS
from ..stream.registry import Streams
from .admission import Admission, LoadSample, RealTimeShare
from .auth import Account, Authenticator, Meter, is_loopback, key_of, read_keys
from .connection import StreamConnection
from .debug import check_debug, debug_routes
from .exposition import CONTENT_TYPE, render_metrics
from .handshake import Handshake, Refusal
from .health import Readiness, health
from .pages import page_routes
from .sessions import SESSION_PATH, SessionRoutes
from .subscribers import SUBSCRIBE_PATH, Subscriptions

__all__ = ["Hub", "create_app"]

SPARE_CONNECTIONS = 16
KEYS_VARIABLE = "WHISPER_STREAM_API_KEYS"

logger = logging.getLogger(__name__)


class Hub:
    """All that one process serves to clients: streams, connections, limits, health.

    Belongs to the event loop.

    Args:
        engine: decodes for all streams.
        config: the daemon's options.
        topology: of the process in the daemon; None: it is the only one.
        engine_usage: returns what other processes of the engine use, if this process is their parent.

    Attributes:
        draining: no new stream is accepted.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        topology: SingleProcess | None = None,
        engine_usage: Callable[[], ProcessStats] = ProcessStats,
    ) -> None:
        self.engine = engine
        self.config = config
        self.topology = topology or SingleProcess()
        self.metrics = Metrics()
        self.streams = Streams(engine, config, self.metrics, topology=self.topology)
        self._engine_usage = engine_usage
        self._admission = Admission(
            config.max_load, config.max_delay, self.topology.admission_log()
        )
        self._real_time = RealTimeShare()
        keys = self._read_keys()
        origins = [origin.strip() for origin in config.allowed_origins.split(",") if origin.strip()]
        authenticator = Authenticator(keys, origins, local=is_loopback(config.host))
        check_debug(config, authenticator)
        self.handshake = Handshake(authenticator, self._admission, self.metrics, config)
        self._readiness = Readiness(engine, self.streams.check_journal, self.metrics.faults)
        self._watching: asyncio.Task[None] | None = None
        self._connections: set[StreamConnection] = set()
        self._relayed = 0  # connections that another process let in, and counts
        # Set while no connection is open.
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    async def websocket(self, websocket: WebSocket) -> None:
        """Serve one websocket from its handshake to its end."""
        if self.draining:
            sentence = "the daemon is stopping; try again in a moment"
            refusal = Refusal(status=503, reason="stopping", sentence=sentence)
            await self.handshake.refuse(websocket, refusal)
            return
        account = self.handshake.check(websocket)
        if isinstance(account, Refusal):
            await self.handshake.refuse(websocket, account)
            return
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name in SUBPROTOCOLS), None)
        await websocket.accept(subprotocol=chosen)
        codec = codec_for(chosen)
        # Most of these will open a stream, or be told that there is no room; some resume one.
        if self._open[1] >= 2 * self.config.max_streams + SPARE_CONNECTIONS:
            await self.handshake.turn_away(websocket, codec)
            return
        await self._serve(websocket, codec, account)

    async def private_websocket(self, websocket: WebSocket) -> None:
        """Serve a websocket that another process has let in, for a stream of this one."""
        digest = websocket.headers.get(ACCOUNT_HEADER, "")
        account = self.handshake.authenticator.find(bytes.fromhex(digest)) if digest else None
        offered = websocket.scope.get("subprotocols", [])
        await websocket.accept(subprotocol=offered[0])
        await self._serve(websocket, codec_for(offered[0]), account, relayed=True)

    async def healthz(self, request: Request) -> Response:
        """Answer ``GET /healthz``."""
        body = health(
            draining=self.draining,
            model=self.engine.model_name,
            stats=await self.topology.collect(self.stats()),
            processes=self.topology.count,
            engine=self.engine.statistics(),
        )
        return Response(msgspec.json.encode(body), media_type="application/json")

    async def readyz(self, request: Request) -> Response:
        """Answer ``GET /readyz``: 200 if a stream that came now would be served."""
        if self.draining:
            return PlainTextResponse("the daemon is stopping\n", status_code=503)
        wrong = await self._readiness.check()
        if wrong is not None:
            return PlainTextResponse(wrong + "\n", status_code=503)
        return PlainTextResponse("ready\n")

    async def show_metrics(self, request: Request) -> Response:
        """Answer ``GET /metrics``; with keys, only to clients that show one."""
        authenticator = self.handshake.authenticator
        key = key_of(request.headers, request.query_params, ())
        if authenticator.needs_key and authenticator.account(key) is None:
            self.metrics.refuse("key")
            return PlainTextResponse("a valid key is needed\n", status_code=401)
        body = render_metrics(
            await self.topology.collect(self.stats()),
            load=self._admission.load,
            engine=self.engine.statistics(),
        )
        return Response(body, media_type=CONTENT_TYPE)

    def stats(self) -> ProcessStats:
        """Return what this process, and the engine processes that it started, have open, counted and used."""
        own = ProcessStats(
            streams=len(self.streams),
            connections=self._own_connections,
            metrics=self.metrics.snapshot(),
        )
        return own + measure_process() + self._engine_usage()

    def publish(self) -> None:
        """Tell the other processes what this one has open."""
        self.topology.publish(len(self.streams), self._own_connections)

    @property
    def _own_connections(self) -> int:
        """Connections from clients to this process."""
        return len(self._connections) - self._relayed

    @property
    def _open(self) -> tuple[int, int]:
        """Streams and connections of the whole daemon."""
        self.publish()
        return self.topology.open

    def start(self) -> None:
        """Recover streams of an earlier daemon, and begin to watch the load; raises JournalError."""
        self.streams.recover()
        if self.config.max_load > 0:
            self._watching = asyncio.create_task(self._watch_load())

    def reload_keys(self) -> None:
        """Read the keys again; raises ConfigError, and keeps the old ones then."""
        self.handshake.authenticator.reload(self._read_keys())

    async def drain(self, seconds: float) -> None:
        """Refuse new streams, finish the open ones, and wait for them for at most ``seconds``."""
        self.draining = True
        for connection in self._connections:
            connection.stop()
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            logger.warning("event=drain_timeout streams=%d", len(self._connections))
        if self._watching is not None:
            self._watching.cancel()
        await self.streams.close()

    def _read_keys(self) -> list[Account]:
        keys = read_keys(self.config.api_keys, os.environ.get(KEYS_VARIABLE))
        return self.topology.accounts(keys)

    def _full(self, account: Account | None) -> tuple[ErrorCode, str] | None:
        """Return an error that says why there is no room for one more stream; None: there was, and it is taken."""
        with self.topology.deciding():
            refusal = self.handshake.full(self._open[0], account)
            if refusal is None:
                self.topology.publish(len(self.streams) + 1, self._own_connections)
        return refusal

    async def _serve(
        self,
        websocket: WebSocket,
        codec: Codec,
        account: Account | None,
        *,
        relayed: bool = False,
    ) -> None:
        """Serve an accepted websocket to its end; a ``relayed`` one is counted by the process that let it in."""
        connection = StreamConnection(
            websocket,
            codec,
            self.streams,
            self.config,
            self.engine.languages,
            Meter(account, self.handshake.authenticator, self.metrics),
            lambda: self._full(account),
            lambda resume: self.topology.relay_resume(websocket, codec, resume, account),
        )
        self._connections.add(connection)
        self._relayed += relayed
        self._empty.clear()
        if self.draining:  # it began while this one was being accepted
            connection.stop()
        counted = None if relayed else account
        if counted is not None:
            counted.usage.add_streams(1)
        try:
            await connection.run()
        finally:
            if counted is not None:
                counted.usage.add_streams(-1)
            self._connections.discard(connection)
            self._relayed -= relayed
            self.publish()  # what has become free is free for the other processes too
            if not self._connections:
                self._empty.set()

    async def _watch_load(self) -> None:
        """Look at the engine once a second, for as long as the daemon runs."""
        loop = asyncio.get_running_loop()
        while True:
            now = loop.time()
            sample = LoadSample(
                live=self._real_time.update(now, self.streams.seconds_in()),
                turnaround=self.metrics.turnarounds.take(),
            )
            self._admission.observe(now, self.engine.statistics(), self._open[0], sample)
            await asyncio.sleep(1.0)


def create_app(hub: Hub, *, private: bool = False) -> ASGIApp:
    """Return the ASGI application that serves ``hub``.

    Args:
        hub: of this process.
        private: the application is for requests that other processes of the daemon pass on.
    """
    sessions = SessionRoutes(hub.streams)
    subscriptions = Subscriptions(hub.streams, hub.handshake)
    websocket = hub.private_websocket if private else hub.websocket
    app = Starlette(
        routes=[
            WebSocketRoute(STREAM_PATH, websocket),
            WebSocketRoute("/", websocket),
            Route("/healthz", hub.healthz),
            Route("/readyz", hub.readyz),
            Route("/metrics", hub.show_metrics),
            Route(SUBSCRIBE_PATH, subscriptions.serve_events, methods=["GET"]),
            WebSocketRoute(SUBSCRIBE_PATH, subscriptions.serve_websocket),
            Route(SESSION_PATH, sessions.fetch, methods=["GET"]),
            Route(SESSION_PATH, sessions.delete, methods=["DELETE"]),
            *page_routes(hub.engine.model_name, hub.engine.languages),
            *debug_routes(hub.streams.debug, hub.config, hub.handshake.authenticator),
        ]
    )
    return app if private else hub.topology.relay(app)
