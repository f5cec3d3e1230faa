"""The ASGI application: websocket routes, HTTP routes, and the streams that are open."""

from __future__ import annotations

import asyncio
import logging

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from .codec import Codec, codec_for
from .config import ServerConfig
from .connection import StreamConnection
from .errors import CloseCode, ErrorCode
from .interfaces import Engine
from .pages import page_routes
from .sessions import SESSION_PATH, SessionRoutes
from .status import health
from .streams import Streams
from .wire import STREAM_PATH, SUBPROTOCOLS, Error

__all__ = ["Hub", "create_app"]

logger = logging.getLogger(__name__)


class Hub:
    """Every open stream of one daemon.

    Attributes:
        draining: no new stream is accepted any more.
    """

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self._engine = engine
        self._config = config
        self.streams = Streams(engine, config)
        self._connections: set[StreamConnection] = set()
        # Set while no stream is open.
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    async def websocket(self, websocket: WebSocket) -> None:
        """Serve one websocket from its handshake to its end."""
        if self.draining:
            await _refuse(websocket, 503, "the daemon is stopping; try again in a moment")
            return
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name in SUBPROTOCOLS), None)
        if offered and chosen is None:
            known = " or ".join(SUBPROTOCOLS)
            await _refuse(websocket, 400, f"none of the offered subprotocols is known; use {known}")
            return
        await websocket.accept(subprotocol=chosen)
        codec = codec_for(chosen)
        if max(len(self._connections), len(self.streams)) >= self._config.max_streams:
            await self._turn_away(websocket, codec)
            return
        await self._serve(websocket, codec)

    async def healthz(self, request: Request) -> Response:
        """Answer ``GET /healthz``."""
        body = health(
            draining=self.draining,
            model=self._engine.model_name,
            streams=len(self._connections),
            engine=self._engine.statistics(),
        )
        return Response(msgspec.json.encode(body), media_type="application/json")

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
        await self.streams.close()

    async def _serve(self, websocket: WebSocket, codec: Codec) -> None:
        connection = StreamConnection(
            websocket, codec, self.streams, self._config, self._engine.languages
        )
        self._connections.add(connection)
        self._empty.clear()
        if self.draining:  # it began while this one was being accepted
            connection.stop()
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._empty.set()

    async def _turn_away(self, websocket: WebSocket, codec: Codec) -> None:
        text = f"all {self._config.max_streams} streams are taken; try again later"
        code = ErrorCode.TOO_MANY_STREAMS
        frame = codec.encode(Error(seq=1, code=code, message=text))
        await (
            websocket.send_text(frame) if isinstance(frame, str) else websocket.send_bytes(frame)
        )
        await websocket.close(CloseCode.TRY_AGAIN_LATER, code)


def create_app(hub: Hub) -> Starlette:
    """Return the ASGI application that serves ``hub``."""
    sessions = SessionRoutes(hub.streams)
    return Starlette(
        routes=[
            WebSocketRoute(STREAM_PATH, hub.websocket),
            WebSocketRoute("/", hub.websocket),
            Route("/healthz", hub.healthz),
            Route(SESSION_PATH, sessions.fetch, methods=["GET"]),
            Route(SESSION_PATH, sessions.delete, methods=["DELETE"]),
            *page_routes(hub._engine.model_name, hub._engine.languages),
        ]
    )


async def _refuse(websocket: WebSocket, status: int, sentence: str) -> None:
    """Refuse the handshake with an HTTP answer."""
    await websocket.send_denial_response(PlainTextResponse(sentence + "\n", status_code=status))
