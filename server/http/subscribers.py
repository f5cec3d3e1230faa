"""One speaks, many read: a stream's text over a read-only websocket, as server-sent events or live WebVTT."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from ..protocol.captions import render
from ..protocol.codec import JsonCodec, codec_for
from ..protocol.errors import CloseCode
from ..protocol.messages import SUBPROTOCOLS, Segment, ServerMessage, Snapshot
from ..stream.outbox import HIGH_WATER, Outbox
from ..stream.registry import Streams
from ..stream.stream import LiveStream
from .handshake import Handshake, Refusal

__all__ = ["SUBSCRIBE_PATH", "Subscriptions"]

SUBSCRIBE_PATH = "/v1/sessions/{id}/watch"
MOST_READERS = 256  # of one stream
_UNKNOWN = "no open stream of this name and key\n"


class _Reader:
    """What one reader has still to be sent. One that falls too far behind is let go, and told."""

    def __init__(self, stream: LiveStream) -> None:
        self._mailbox = stream.mailbox
        self._outbox = Outbox()
        self._outbox.put(stream.snapshot())
        self._mailbox.readers.add(self._take)
        if self._mailbox.closing is not None:
            self._outbox.close(*self._mailbox.closing)

    def _take(self, message: ServerMessage | None) -> None:
        if message is None:
            self._outbox.close(CloseCode.NORMAL, "done")
        elif len(self._outbox) >= HIGH_WATER:
            self._outbox.close(CloseCode.TRY_AGAIN_LATER, "you read too slowly; join again")
        else:
            self._outbox.put(message)

    @property
    def closing(self) -> tuple[CloseCode, str]:
        return self._outbox.closing or (CloseCode.NORMAL, "done")

    async def messages(self) -> AsyncIterator[ServerMessage]:
        """All that is left to say, to the end of the stream."""
        try:
            while (message := await self._outbox.get()) is not None:
                yield message
        finally:
            self.leave()

    def leave(self) -> None:
        self._mailbox.readers.discard(self._take)


class Subscriptions:
    """The key of the query is the one in ``ready.watch``, or the session's own token."""

    def __init__(self, streams: Streams, handshake: Handshake) -> None:
        self._streams = streams
        self._handshake = handshake

    async def serve_websocket(self, websocket: WebSocket) -> None:
        """Send the snapshot, then what the stream says; take nothing."""
        if not self._handshake.authenticator.welcomes(
            websocket.headers.get("origin"), websocket.headers.get("host", "")
        ):
            refusal = Refusal(status=403, reason="origin", sentence="this origin may not connect")
            await self._handshake.refuse(websocket, refusal)
            return
        stream = self._find(websocket.path_params["id"], websocket.query_params.get("key", ""))
        if not isinstance(stream, LiveStream):
            await websocket.send_denial_response(stream)
            return
        offered = websocket.scope.get("subprotocols", [])
        chosen = next((name for name in offered if name in SUBPROTOCOLS), None)
        await websocket.accept(subprotocol=chosen)
        reader = _Reader(stream)
        codec = codec_for(chosen)
        listening = asyncio.create_task(_until_gone(websocket))
        sending = asyncio.create_task(_send(websocket, reader, codec.encode))
        try:
            await asyncio.wait({listening, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (listening, sending):
                task.cancel()
            await asyncio.gather(listening, sending, return_exceptions=True)
            reader.leave()

    async def serve_events(self, request: Request) -> Response:
        """``?format=vtt``: closed segments as WebVTT cues; else every message as an event."""
        stream = self._find(request.path_params["id"], request.query_params.get("key", ""))
        if not isinstance(stream, LiveStream):
            return stream
        form = request.query_params.get("format")
        if form not in (None, "vtt"):
            text = "format can be vtt; leave it out for server-sent events\n"
            return PlainTextResponse(text, status_code=400)
        reader = _Reader(stream)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        if form == "vtt":
            return StreamingResponse(_cues(reader), headers=headers, media_type="text/vtt")
        return StreamingResponse(_events(reader), headers=headers, media_type="text/event-stream")

    def _find(self, stream_id: str, key: str) -> LiveStream | Response:
        stream = self._streams.watch(stream_id, key)
        if stream is None:
            return PlainTextResponse(_UNKNOWN, status_code=404)
        if len(stream.mailbox.readers) >= MOST_READERS:
            return PlainTextResponse("the stream has too many readers\n", status_code=503)
        return stream


async def _until_gone(websocket: WebSocket) -> None:
    """Read and ignore, so that the reader's leaving is noticed."""
    while (await websocket.receive())["type"] != "websocket.disconnect":
        pass


async def _send(websocket: WebSocket, reader: _Reader, encode: object) -> None:
    assert callable(encode)
    try:
        async for message in reader.messages():
            frame = encode(message)
            if isinstance(frame, str):
                await websocket.send_text(frame)
            else:
                await websocket.send_bytes(frame)
        await websocket.close(*reader.closing)
    except WebSocketDisconnect:
        pass


async def _events(reader: _Reader) -> AsyncIterator[str]:
    codec = JsonCodec()
    async for message in reader.messages():
        kind = message.__struct_config__.tag
        data = codec.encode(message)
        assert isinstance(data, str)
        yield f"event: {kind}\nid: {message.seq}\ndata: {data}\n\n"
    yield f"event: end\ndata: {msgspec.json.encode(reader.closing[1]).decode()}\n\n"


async def _cues(reader: _Reader) -> AsyncIterator[str]:
    yield "WEBVTT\n\n"
    async for message in reader.messages():
        if isinstance(message, Snapshot):
            yield _body(message.segments)
        elif isinstance(message, Segment):
            yield _body((message,))


def _body(segments: tuple[Segment, ...]) -> str:
    """Cues without the file's head, an empty line after each."""
    cues = render(segments, "vtt").removeprefix("WEBVTT").strip("\n")
    return cues + "\n\n" if cues else ""
