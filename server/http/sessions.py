"""Transcripts over HTTP: ``GET`` and ``DELETE`` of ``/v1/sessions/{id}.{format}`` with its token."""

from __future__ import annotations

from typing import get_args

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ..errors import JournalError
from ..protocol.captions import CaptionFormat, render
from ..stream.registry import Streams

__all__ = ["SESSION_PATH", "SessionRoutes"]

SESSION_PATH = "/v1/sessions/{name}"
_MEDIA_TYPES: dict[CaptionFormat, str] = {
    "srt": "application/x-subrip",
    "vtt": "text/vtt",
    "txt": "text/plain",
    "json": "application/json",
}
_UNKNOWN = "no session of this name and token; it may have been deleted or have expired"


class SessionRoutes:
    """Handlers that answer requests with the session's token: ``Authorization: Bearer TOKEN``, or ``?token=``."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def fetch(self, request: Request) -> Response:
        """Answer with the closed segments so far."""
        stream_id, _, suffix = request.path_params["name"].partition(".")
        form = next((each for each in get_args(CaptionFormat) if each == suffix), None)
        if form is None:
            known = ", ".join(_MEDIA_TYPES)
            return _say(f"the path must end in one of .{known.replace(', ', ', .')}", 404)
        try:
            segments = self._streams.transcript(stream_id, _token(request))
        except JournalError:
            return _say("the journal cannot be read; the daemon's log says why", 503)
        if segments is None:
            return _say(_UNKNOWN, 404)
        headers = {"cache-control": "no-store"}
        return Response(render(segments, form), headers=headers, media_type=_MEDIA_TYPES[form])

    async def delete(self, request: Request) -> Response:
        """Forget the session, its audio and its text."""
        stream_id = request.path_params["name"].partition(".")[0]
        try:
            deleted = await self._streams.delete(stream_id, _token(request))
        except JournalError:
            return _say("the journal cannot be read; the daemon's log says why", 503)
        return Response(status_code=204) if deleted else _say(_UNKNOWN, 404)


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.query_params.get("token", "")


def _say(sentence: str, status: int) -> Response:
    return PlainTextResponse(sentence + "\n", status_code=status)
