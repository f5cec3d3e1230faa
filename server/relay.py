"""A request for a stream of another process, carried there and back over a Unix socket.

Which process it is can be read from the stream's id. The other one checks tokens and keys as always:
what a client may do does not depend on where it was let in.
Whatever fails on the way is answered so that clients try again: the other process is being started
again, or the daemon is.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Origin, Subprotocol

from .access import Account
from .codec import Codec
from .errors import CloseCode
from .relay_http import Patience, away, gather, relay_request, target_of
from .wire import MAX_FRAME_BYTES, STREAM_PATH, Resume

__all__ = ["ACCOUNT_HEADER", "Relay", "relay_resume"]

ACCOUNT_HEADER = "x-whisper-stream-account"  # between processes: the digest of the client's key
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")
_SESSIONS, _DEBUG = "/v1/sessions/", "/debug/streams/"
_DEBUG_LIST = "/debug/streams"
_UNANSWERED = (OSError, EOFError, WebSocketException)  # nobody there, or broken off, or refused


class Relay:
    """ASGI: ``app`` serves what is its own, and all that names no stream of another.

    Args:
        owner: the socket's path of the process that has a stream; None: this one.
        everybody: the sockets of all processes, this one's too.
    """

    def __init__(
        self,
        app: ASGIApp,
        owner: Callable[[str], str | None],
        everybody: tuple[str, ...],
        patience: Patience,
    ) -> None:
        self._app = app
        self._owner = owner
        self._everybody = everybody
        self._patience = patience

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if path == _DEBUG_LIST and scope["type"] == "http":
            response = await gather(Request(scope), self._everybody, self._patience)
            await response(scope, receive, send)
            return
        name = next((path[len(p) :] for p in (_SESSIONS, _DEBUG) if path.startswith(p)), None)
        there = None if name is None else self._owner(name.partition("/")[0].partition(".")[0])
        if there is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _relay_websocket(WebSocket(scope, receive, send), there, self._patience)
        else:
            response = await relay_request(Request(scope, receive), there, self._patience)
            await response(scope, receive, send)


async def relay_resume(
    websocket: WebSocket,
    codec: Codec,
    resume: Resume,
    account: Account | None,
    there: str,
    patience: Patience,
) -> None:
    """Serve a stream of the process at ``there`` on an accepted websocket, until either side ends."""
    headers = {} if account is None else {ACCOUNT_HEADER: account.digest.hex()}
    offered = [codec.subprotocol]
    try:
        async with _connected(
            there, STREAM_PATH, websocket.scope, offered, headers, patience
        ) as far:
            await far.send(codec.encode(resume))
            await _pump(websocket, far)
    except _UNANSWERED:
        await _turn_away(websocket)


async def _relay_websocket(websocket: WebSocket, there: str, patience: Patience) -> None:
    scope = websocket.scope
    offered = scope.get("subprotocols", [])
    try:
        async with _connected(there, target_of(scope), scope, offered, {}, patience) as far:
            await websocket.accept(subprotocol=far.subprotocol)
            await _pump(websocket, far)
    except InvalidStatus as refused:
        body, status = refused.response.body or b"", refused.response.status_code
        if status == 500:  # so a process that ends answers whom it has not let in yet
            await _turn_away(websocket)
            return
        await websocket.send_denial_response(
            PlainTextResponse(bytes(body).decode(errors="replace"), status_code=status)
        )
    except _UNANSWERED:
        await _turn_away(websocket)


async def _turn_away(websocket: WebSocket) -> None:
    """Nobody answers there now: say so in a way after which clients try again."""
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(away())
    else:
        await _close(websocket, CloseCode.SERVICE_RESTART, "away")


@contextlib.asynccontextmanager
async def _connected(
    there: str,
    target: str,
    scope: Scope,
    offered: list[str],
    headers: dict[str, str],
    patience: Patience,
) -> AsyncIterator[ClientConnection]:
    """Raises one of ``_UNANSWERED`` where nobody answers for long, or the socket is refused."""
    given = dict(scope["headers"])
    origin = given.get(b"origin")
    async with patience.wait():
        far = await unix_connect(
            there,
            uri=f"ws://{_host(given.get(b'host', b''))}{target}",
            origin=None if origin is None else Origin(origin.decode("latin-1")),
            subprotocols=[Subprotocol(each) for each in offered] or None,
            additional_headers=headers,
            compression=None,
            max_size=MAX_FRAME_BYTES,
            max_queue=4,
            open_timeout=None,
            ping_interval=None,
            proxy=None,
        )
    try:
        yield far
    finally:
        await far.close()


async def _pump(websocket: WebSocket, far: ClientConnection) -> None:
    """Carry frames both ways until one side has ended; the other is told in the same words."""
    inwards = asyncio.create_task(_inwards(websocket, far))
    outwards = asyncio.create_task(_outwards(far, websocket))
    try:
        await asyncio.wait({inwards, outwards}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (inwards, outwards):
            task.cancel()
        await asyncio.gather(inwards, outwards, return_exceptions=True)
    if far.close_code is not None:
        await _close(websocket, far.close_code, far.close_reason or "")


async def _inwards(websocket: WebSocket, far: ClientConnection) -> None:
    """Ends when the client has gone. What comes after the other end is dropped: the rest of what that
    has said, which may wait still, is not.
    """
    while (frame := await websocket.receive())["type"] != "websocket.disconnect":
        text = frame.get("text")
        with contextlib.suppress(ConnectionClosed):
            await far.send(frame["bytes"] if text is None else text)


async def _outwards(far: ClientConnection, websocket: WebSocket) -> None:
    with contextlib.suppress(ConnectionClosed, WebSocketDisconnect, RuntimeError):
        async for frame in far:
            if isinstance(frame, str):
                await websocket.send_text(frame)
            else:
                await websocket.send_bytes(frame)


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    # A process that died says nothing (1006), which is no code that can be sent.
    code = code if code not in (1005, 1006, 1015) else CloseCode.SERVICE_RESTART
    if websocket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.close(code, reason)


def _host(given: bytes) -> str:
    """The name by which the client called us, where it can stand in an address."""
    host = given.decode("latin-1")
    return host if _HOST.fullmatch(host) else "localhost"
