"""A request for a stream of another process, carried there and back over a Unix socket.

Which process it is can be read from the stream's id. The other one checks tokens and keys as always:
what a client may do does not depend on where it was let in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import h11
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus
from websockets.typing import Origin, Subprotocol

from .access import Account
from .codec import Codec
from .errors import CloseCode
from .wire import MAX_FRAME_BYTES, STREAM_PATH, Resume

__all__ = ["ACCOUNT_HEADER", "Relay", "relay_resume"]

ACCOUNT_HEADER = "x-whisper-stream-account"  # between processes: the digest of the client's key
_PATIENCE = 15.0  # seconds: the other process may be being started again
_HOST = re.compile(r"[A-Za-z0-9.\-]+(:\d+)?|\[[0-9A-Fa-f:]+\](:\d+)?")
_SESSIONS, _DEBUG = "/v1/sessions/", "/debug/streams/"
_DEBUG_LIST = "/debug/streams"
_PASSED_ON = ("authorization", "x-api-key", "host", "last-event-id")
_BLOCK = 65_536
_AWAY = "the process that has this stream does not answer; try again in a moment\n"


class Relay:
    """ASGI: ``app`` serves what is its own, and all that names no stream of another.

    Args:
        owner: the socket's path of the process that has a stream; None: this one.
        everybody: the sockets of all processes, this one's too.
    """

    def __init__(
        self, app: ASGIApp, owner: Callable[[str], str | None], everybody: tuple[str, ...]
    ) -> None:
        self._app = app
        self._owner = owner
        self._everybody = everybody

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if path == _DEBUG_LIST and scope["type"] == "http":
            response = await _gather(Request(scope), self._everybody)
            await response(scope, receive, send)
            return
        name = next((path[len(p) :] for p in (_SESSIONS, _DEBUG) if path.startswith(p)), None)
        there = None if name is None else self._owner(name.partition("/")[0].partition(".")[0])
        if there is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _relay_websocket(WebSocket(scope, receive, send), there)
        else:
            response = await _relay_request(Request(scope, receive), there)
            await response(scope, receive, send)


async def relay_resume(
    websocket: WebSocket, codec: Codec, resume: Resume, account: Account | None, there: str
) -> None:
    """Serve a stream of the process at ``there`` on an accepted websocket, until either side ends."""
    headers = {} if account is None else {ACCOUNT_HEADER: account.digest.hex()}
    try:
        async with _connected(
            there, STREAM_PATH, websocket.scope, [codec.subprotocol], headers
        ) as far:
            await far.send(codec.encode(resume))
            await _pump(websocket, far)
    except (OSError, InvalidHandshake):
        await _close(websocket, CloseCode.TRY_AGAIN_LATER, "away")


async def _relay_websocket(websocket: WebSocket, there: str) -> None:
    offered = websocket.scope.get("subprotocols", [])
    try:
        async with _connected(there, _target(websocket.scope), websocket.scope, offered, {}) as far:
            await websocket.accept(subprotocol=far.subprotocol)
            await _pump(websocket, far)
    except InvalidStatus as refused:
        body, status = refused.response.body or b"", refused.response.status_code
        await websocket.send_denial_response(
            PlainTextResponse(bytes(body).decode(errors="replace"), status_code=status)
        )
    except (OSError, InvalidHandshake):
        await websocket.send_denial_response(PlainTextResponse(_AWAY, status_code=503))


@contextlib.asynccontextmanager
async def _connected(
    there: str, target: str, scope: Scope, offered: list[str], headers: dict[str, str]
) -> AsyncIterator[ClientConnection]:
    """Raises OSError where nobody answers for long, and InvalidHandshake where the socket is refused."""
    given = dict(scope["headers"])
    origin = given.get(b"origin")
    async with unix_connect(
        there,
        uri=f"ws://{_host(given.get(b'host', b''))}{target}",
        origin=None if origin is None else Origin(origin.decode("latin-1")),
        subprotocols=[Subprotocol(each) for each in offered] or None,
        additional_headers=headers,
        compression=None,
        max_size=MAX_FRAME_BYTES,
        max_queue=4,
        open_timeout=_PATIENCE,
        ping_interval=None,
        proxy=None,
    ) as far:
        yield far


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
    with contextlib.suppress(ConnectionClosed):
        while (frame := await websocket.receive())["type"] != "websocket.disconnect":
            text = frame.get("text")
            await far.send(frame["bytes"] if text is None else text)


async def _outwards(far: ClientConnection, websocket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
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


@dataclass(slots=True)
class _Answer:
    """What a process says to one HTTP request, as it comes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    parser: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def event(self) -> object:
        """The next event of h11; raises OSError where the other end breaks off."""
        try:
            while (event := self.parser.next_event()) is h11.NEED_DATA:
                self.parser.receive_data(await self.reader.read(_BLOCK))
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from None
        return event

    async def body(self) -> AsyncIterator[bytes]:
        """All that follows the head."""
        try:
            with contextlib.suppress(OSError):
                while isinstance(event := await self.event(), h11.Data):
                    yield bytes(event.data)
        finally:
            self.writer.close()


async def _ask(request: Request, there: str) -> tuple[h11.Response, _Answer]:
    """Ask the process at ``there`` the same; raises OSError."""
    try:
        async with asyncio.timeout(_PATIENCE):
            answer = _Answer(*await asyncio.open_unix_connection(there))
            headers = [(n, v) for n, v in request.headers.raw if n.decode("latin-1") in _PASSED_ON]
            head = h11.Request(
                method=request.method,
                target=_target(request.scope),
                headers=[*headers, (b"connection", b"close")],
            )
            for event in (head, h11.EndOfMessage()):
                answer.writer.write(answer.parser.send(event) or b"")
            response = await answer.event()
    except (TimeoutError, h11.LocalProtocolError):
        raise ConnectionError("no answer") from None
    if not isinstance(response, h11.Response):
        raise ConnectionError("no answer")
    return response, answer


async def _relay_request(request: Request, there: str) -> Response:
    try:
        head, answer = await _ask(request, there)
    except OSError:
        return PlainTextResponse(_AWAY, status_code=503)
    response = StreamingResponse(answer.body(), status_code=head.status_code)
    passed = [(n, v) for n, v in head.headers if n not in (b"connection", b"transfer-encoding")]
    response.raw_headers = [(bytes(n), bytes(v)) for n, v in passed]
    return response


async def _gather(request: Request, everybody: tuple[str, ...]) -> Response:
    """The lists of all processes as one; or the first answer that is none."""
    together: list[object] = []
    for there in everybody:
        try:
            head, answer = await _ask(request, there)
        except OSError:
            continue  # being started again: it has no streams to show
        body = b"".join([part async for part in answer.body()])
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
        if head.status_code != 200:
            return Response(body, head.status_code, media_type=headers.get("content-type"))
        together += json.loads(body)
    return JSONResponse(together, headers={"Cache-Control": "no-store"})


def _target(scope: Scope) -> str:
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


def _host(given: bytes) -> str:
    """The name by which the client called us, where it can stand in an address."""
    host = given.decode("latin-1")
    return host if _HOST.fullmatch(host) else "localhost"
