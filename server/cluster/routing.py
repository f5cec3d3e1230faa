"""Requests for streams of another process, carried there and back over a Unix socket.

The id of a stream names its process (``topology.py``). That process checks tokens and keys as always: the
rights of a client do not depend on the process that let it in. Every failure on the way is answered such
that clients try again, because the other process, or the daemon, is being started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import h11
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Origin, Subprotocol

from ..http.asgi import is_host_header, send_frame
from ..http.auth import Account
from ..protocol.codec import Codec
from ..protocol.errors import CloseCode
from ..protocol.messages import MAX_FRAME_BYTES, STREAM_PATH, Resume

__all__ = [
    "ACCOUNT_HEADER",
    "Patience",
    "Relay",
    "answer_away",
    "gather",
    "relay_request",
    "relay_resume",
    "target_of",
]


_PATIENCE = 15.0  # seconds: the other process may be being started again
_LAST_PATIENCE = 0.5  # while the daemon stops: it may be gone, and nobody starts it again
_PASSED_ON = ("authorization", "x-api-key", "host", "last-event-id")
_BLOCK = 65_536
_AWAY = "the process that has this stream does not answer; try again in a moment\n"
_RETRY = {"Retry-After": "1"}


class Patience:
    """The time limit of requests to another process: long, but short once the daemon stops."""

    def __init__(self) -> None:
        self._stopping = False
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """End all waits soon: the other process may be gone, and is not started again."""
        self._stopping = True
        latest = asyncio.get_running_loop().time() + _LAST_PATIENCE
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(min(latest, wait.when() or latest))

    @contextlib.asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block once it has taken too long."""
        async with asyncio.timeout(_LAST_PATIENCE if self._stopping else _PATIENCE) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)


@dataclass(slots=True)
class _Answer:
    """The answer of another process to one HTTP request, as it arrives."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    parser: h11.Connection = field(default_factory=lambda: h11.Connection(h11.CLIENT))

    async def event(self) -> object:
        """Return the next event of h11; raises OSError if the other end breaks off."""
        try:
            while (event := self.parser.next_event()) is h11.NEED_DATA:
                self.parser.receive_data(await self.reader.read(_BLOCK))
        except h11.RemoteProtocolError as error:
            raise ConnectionError(str(error)) from None
        return event

    async def whole(self) -> bytes:
        """Return the whole body; raises OSError if it breaks off."""
        parts: list[bytes] = []
        try:
            while isinstance(event := await self.event(), h11.Data):
                parts.append(bytes(event.data))
        finally:
            self.writer.close()
        return b"".join(parts)

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, until it ends or breaks off."""
        try:
            with contextlib.suppress(OSError):
                while isinstance(event := await self.event(), h11.Data):
                    yield bytes(event.data)
        finally:
            self.writer.close()


async def _ask(request: Request, owner: str, patience: Patience) -> tuple[h11.Response, _Answer]:
    """Send the request to the process at the socket ``owner``; raises OSError if it does not answer."""
    async with patience.wait():
        answer = _Answer(*await asyncio.open_unix_connection(owner))
        try:
            response = await _head(request, answer)
        except BaseException:
            answer.writer.close()
            raise
    return response, answer


async def _head(request: Request, answer: _Answer) -> h11.Response:
    headers = [(n, v) for n, v in request.headers.raw if n.decode("latin-1") in _PASSED_ON]
    target = target_of(request.scope)
    try:
        head = h11.Request(
            method=request.method, target=target, headers=[*headers, (b"connection", b"close")]
        )
        for event in (head, h11.EndOfMessage()):
            answer.writer.write(answer.parser.send(event) or b"")
    except h11.LocalProtocolError:
        raise ConnectionError("no request that can be passed on") from None
    response = await answer.event()
    # A process that ends answers 500 what it has no time for.
    if not isinstance(response, h11.Response) or response.status_code == 500:
        raise ConnectionError("no answer")
    return response


async def relay_request(request: Request, owner: str, patience: Patience) -> Response:
    """Return the answer of the process at the socket ``owner``, or 503."""
    try:
        head, answer = await _ask(request, owner, patience)
        passed = [(n, v) for n, v in head.headers if n not in (b"connection", b"transfer-encoding")]
        response: Response
        if any(name == b"content-length" for name, _ in passed):  # whole, or not at all
            async with patience.wait():
                response = Response(await answer.whole(), head.status_code)
        else:
            response = StreamingResponse(answer.body(), head.status_code)
    except OSError:
        return answer_away()
    response.raw_headers = [(bytes(n), bytes(v)) for n, v in passed]
    return response


async def gather(request: Request, everybody: tuple[str, ...], patience: Patience) -> Response:
    """Return the lists of all processes as one; or the first answer that is not a list.

    Args:
        request: is sent to each of them.
        everybody: sockets of all processes.
        patience: limits each wait.
    """
    together: list[object] = []
    for sock in everybody:
        try:
            head, answer = await _ask(request, sock, patience)
            async with patience.wait():
                body = await answer.whole()
        except OSError:
            continue  # being started again: it has no streams to show
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
        if head.status_code != 200:
            return Response(body, head.status_code, media_type=headers.get("content-type"))
        together += json.loads(body)
    return JSONResponse(together, headers={"Cache-Control": "no-store"})


def answer_away() -> Response:
    """Return 503 for a process that does not answer: clients try again after it."""
    return PlainTextResponse(_AWAY, status_code=503, headers=_RETRY)


def target_of(scope: Scope) -> str:
    """Return path and query of a request, as they were sent."""
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path


ACCOUNT_HEADER = "x-whisper-stream-account"  # between processes: the digest of the client's key
_SESSIONS, _DEBUG = "/v1/sessions/", "/debug/streams/"
_DEBUG_LIST = "/debug/streams"
_UNANSWERED = (OSError, EOFError, WebSocketException)  # no answer, broken off, or refused


class Relay:
    """An ASGI application in front of ``app`` that passes on requests for streams of other processes.

    Args:
        app: serves all other requests.
        owner: returns the socket of the process that owns a stream; None: this process does.
        everybody: sockets of all processes, that of this one too.
        patience: limits the wait for another process.
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
        owner = None if name is None else self._owner(name.partition("/")[0].partition(".")[0])
        if owner is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await _relay_websocket(WebSocket(scope, receive, send), owner, self._patience)
        else:
            response = await relay_request(Request(scope, receive), owner, self._patience)
            await response(scope, receive, send)


async def relay_resume(
    websocket: WebSocket,
    codec: Codec,
    resume: Resume,
    account: Account | None,
    owner: str,
    patience: Patience,
) -> None:
    """Serve a stream of the process at the socket ``owner`` on an accepted websocket, until either side ends.

    Args:
        websocket: of the client.
        codec: its negotiated form.
        resume: the client's first message.
        account: of the client's key, which this process has checked.
        owner: the socket.
        patience: limits the wait for the other process.
    """
    headers = {} if account is None else {ACCOUNT_HEADER: account.digest.hex()}
    offered = [codec.subprotocol]
    try:
        async with _connect(owner, STREAM_PATH, websocket.scope, offered, headers, patience) as far:
            await far.send(codec.encode(resume))
            await _pump(websocket, far)
    except _UNANSWERED:
        await _turn_away(websocket)


async def _relay_websocket(websocket: WebSocket, owner: str, patience: Patience) -> None:
    scope = websocket.scope
    offered = scope.get("subprotocols", [])
    try:
        async with _connect(owner, target_of(scope), scope, offered, {}, patience) as far:
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
    """Refuse or close the websocket such that the client tries again: the other process does not answer."""
    if websocket.application_state is WebSocketState.CONNECTING:
        await websocket.send_denial_response(answer_away())
    else:
        await _close(websocket, CloseCode.SERVICE_RESTART, "away")


@contextlib.asynccontextmanager
async def _connect(
    owner: str,
    target: str,
    scope: Scope,
    offered: list[str],
    headers: dict[str, str],
    patience: Patience,
) -> AsyncIterator[ClientConnection]:
    """Connect to another process as the client did; raises one of ``_UNANSWERED`` if that fails."""
    given = dict(scope["headers"])
    origin = given.get(b"origin")
    async with patience.wait():
        far = await unix_connect(
            owner,
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
    """Carry frames both ways until one side has ended; close the other one with the same code and reason."""
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
    """Carry frames to the other process until the client has gone.

    Frames that come after the other process has closed are dropped, but its last messages still reach the
    client: so this does not end with it.
    """
    while (frame := await websocket.receive())["type"] != "websocket.disconnect":
        text = frame.get("text")
        with contextlib.suppress(ConnectionClosed):
            await far.send(frame["bytes"] if text is None else text)


async def _outwards(far: ClientConnection, websocket: WebSocket) -> None:
    with contextlib.suppress(ConnectionClosed, WebSocketDisconnect, RuntimeError):
        async for frame in far:
            await send_frame(websocket, frame)


async def _close(websocket: WebSocket, code: int, reason: str) -> None:
    # A process that died says nothing (1006), which is no code that can be sent.
    code = code if code not in (1005, 1006, 1015) else CloseCode.SERVICE_RESTART
    if websocket.application_state is WebSocketState.CONNECTED:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            await websocket.close(code, reason)


def _host(given: bytes) -> str:
    """Return the host that the client addressed, if it can stand in an address."""
    host = given.decode("latin-1")
    return host if is_host_header(host) else "localhost"
