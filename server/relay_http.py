"""An HTTP request asked again of another process, and how long to wait for that."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import h11
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Scope

__all__ = ["Patience", "away", "gather", "relay_request", "target_of"]

_PATIENCE = 15.0  # seconds: the other process may be being started again
_LAST_PATIENCE = 0.5  # while the daemon stops: it may be gone, and nobody starts it again
_PASSED_ON = ("authorization", "x-api-key", "host", "last-event-id")
_BLOCK = 65_536
_AWAY = "the process that has this stream does not answer; try again in a moment\n"
_RETRY = {"Retry-After": "1"}


class Patience:
    """How long to wait for another process to answer: long, but not once the daemon stops."""

    def __init__(self) -> None:
        self._stopping = False
        self._waits: set[asyncio.Timeout] = set()

    def stop(self) -> None:
        """Let nothing wait for much longer."""
        self._stopping = True
        latest = asyncio.get_running_loop().time() + _LAST_PATIENCE
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(min(latest, wait.when() or latest))

    @contextlib.asynccontextmanager
    async def wait(self) -> AsyncIterator[None]:
        """Raises TimeoutError in the block once it has taken too long."""
        async with asyncio.timeout(_LAST_PATIENCE if self._stopping else _PATIENCE) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)


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

    async def whole(self) -> bytes:
        """All that follows the head, or OSError where that breaks off."""
        parts: list[bytes] = []
        try:
            while isinstance(event := await self.event(), h11.Data):
                parts.append(bytes(event.data))
        finally:
            self.writer.close()
        return b"".join(parts)

    async def body(self) -> AsyncIterator[bytes]:
        """What follows the head, as it comes, for as long as it comes."""
        try:
            with contextlib.suppress(OSError):
                while isinstance(event := await self.event(), h11.Data):
                    yield bytes(event.data)
        finally:
            self.writer.close()


async def _ask(request: Request, there: str, patience: Patience) -> tuple[h11.Response, _Answer]:
    """Ask the process at ``there`` the same; raises OSError."""
    async with patience.wait():
        answer = _Answer(*await asyncio.open_unix_connection(there))
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


async def relay_request(request: Request, there: str, patience: Patience) -> Response:
    """Answer what the process at ``there`` answers, or 503."""
    try:
        head, answer = await _ask(request, there, patience)
        passed = [(n, v) for n, v in head.headers if n not in (b"connection", b"transfer-encoding")]
        response: Response
        if any(name == b"content-length" for name, _ in passed):  # whole, or not at all
            async with patience.wait():
                response = Response(await answer.whole(), head.status_code)
        else:
            response = StreamingResponse(answer.body(), head.status_code)
    except OSError:
        return away()
    response.raw_headers = [(bytes(n), bytes(v)) for n, v in passed]
    return response


async def gather(request: Request, everybody: tuple[str, ...], patience: Patience) -> Response:
    """The lists of all processes as one; or the first answer that is none."""
    together: list[object] = []
    for there in everybody:
        try:
            head, answer = await _ask(request, there, patience)
            async with patience.wait():
                body = await answer.whole()
        except OSError:
            continue  # being started again: it has no streams to show
        headers = {n.decode("latin-1"): v.decode("latin-1") for n, v in head.headers}
        if head.status_code != 200:
            return Response(body, head.status_code, media_type=headers.get("content-type"))
        together += json.loads(body)
    return JSONResponse(together, headers={"Cache-Control": "no-store"})


def away() -> Response:
    """Nobody answers there now; after this, clients try again."""
    return PlainTextResponse(_AWAY, status_code=503, headers=_RETRY)


def target_of(scope: Scope) -> str:
    """The request's path and query, as they came."""
    path = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    query = scope.get("query_string", b"").decode("latin-1")
    return f"{path}?{query}" if query else path
