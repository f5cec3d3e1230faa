"""Readers of a stream: its text over a read-only websocket, as server-sent events, or as live WebVTT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..protocol.captions import render
from ..protocol.codec import Codec, JsonCodec, codec_for
from ..protocol.errors import CloseCode
from ..protocol.messages import SUBPROTOCOLS, Segment, ServerMessage, Snapshot
from ..stream.outbox import SendQueue
from ..stream.registry import Streams
from ..stream.runner import StreamRunner
from .asgi import send_frame
from .handshake import Handshake, Refusal

__all__ = ["SUBSCRIBE_PATH", "Subscriptions"]

SUBSCRIBE_PATH = "/v1/sessions/{id}/watch"
MOST_READERS = 256  # of one stream
_UNKNOWN = "no open stream of this name and key\n"


class Subscriptions:
    """Handlers for readers. The key of the query is the one in ``ready.watch``, or the session's own token."""

    def __init__(self, streams: Streams, handshake: Handshake) -> None:
        self._streams = streams
        self._handshake = handshake

    async def serve_websocket(self, websocket: WebSocket) -> None:
        """Send the snapshot, then every message of the stream; ignore what the reader sends."""
        if not self._handshake.authenticator.welcomes(
            websocket.headers.get("origin"), websocket.headers.get("host", "")
        ):
            refusal = Refusal(status=403, reason="origin", sentence="this origin may not connect")
            await self._handshake.refuse(websocket, refusal)
            return
        stream = self._find(websocket.path_params["id"], websocket.query_params.get("key", ""))
        if not isinstance(stream, StreamRunner):
            await websocket.send_denial_response(stream)
            return
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name in SUBPROTOCOLS), None)
        await websocket.accept(subprotocol=chosen)
        queue = stream.join()
        listening = asyncio.create_task(_wait_for_disconnect(websocket))
        sending = asyncio.create_task(_send(websocket, stream, queue, codec_for(chosen)))
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
            stream.outbox.leave(queue)

    async def serve_events(self, request: Request) -> Response:
        """Answer with every message as a server-sent event; with ``?format=vtt``, closed segments as WebVTT cues."""
        stream = self._find(request.path_params["id"], request.query_params.get("key", ""))
        if not isinstance(stream, StreamRunner):
            return stream
        form = request.query_params.get("format")
        if form not in (None, "vtt"):
            text = "format can be vtt; leave it out for server-sent events\n"
            return PlainTextResponse(text, status_code=400)
        messages = _messages(stream, queue := stream.join())
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if form == "vtt":
            return StreamingResponse(_cues(messages), headers=headers, media_type="text/vtt")
        return StreamingResponse(
            _events(messages, queue), headers=headers, media_type="text/event-stream"
        )

    def _find(self, stream_id: str, key: str) -> StreamRunner | Response:
        stream = self._streams.watch(stream_id, key)
        if stream is None:
            return PlainTextResponse(_UNKNOWN, status_code=404)
        if stream.outbox.readers >= MOST_READERS:
            return PlainTextResponse("the stream has too many readers\n", status_code=503)
        return stream


async def _wait_for_disconnect(websocket: WebSocket) -> None:
    """Read and ignore frames until the reader has left."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _messages(stream: StreamRunner, queue: SendQueue) -> AsyncIterator[ServerMessage]:
    """Yield all that is left to say, to the end of the stream; then leave it."""
    try:
        while (message := await queue.get()) is not None:
            yield message
    finally:
        stream.outbox.leave(queue)


async def _send(websocket: WebSocket, stream: StreamRunner, queue: SendQueue, codec: Codec) -> None:
    try:
        async for message in _messages(stream, queue):
            await send_frame(websocket, codec.encode(message))
        await websocket.close(*_closing(queue))
    except WebSocketDisconnect:
        pass


async def _events(messages: AsyncIterator[ServerMessage], queue: SendQueue) -> AsyncIterator[str]:
    codec = JsonCodec()
    async for message in messages:
        kind = message.__struct_config__.tag
        data = codec.encode(message)
        assert isinstance(data, str)
        yield f"event: {kind}\nid: {message.seq}\ndata: {data}\n\n"
    yield f"event: end\ndata: {msgspec.json.encode(_closing(queue)[1]).decode()}\n\n"


async def _cues(messages: AsyncIterator[ServerMessage]) -> AsyncIterator[str]:
    yield "WEBVTT\n\n"
    async for message in messages:
        if isinstance(message, Snapshot):
            yield _body(message.segments)
        elif isinstance(message, Segment):
            yield _body((message,))


def _closing(queue: SendQueue) -> tuple[CloseCode, str]:
    return queue.closing or (CloseCode.NORMAL, "done")


def _body(segments: tuple[Segment, ...]) -> str:
    """Return the cues without the head of a file, each followed by an empty line."""
    cues = render(segments, "vtt").removeprefix("WEBVTT").strip("\n")
    return cues + "\n\n" if cues else ""
