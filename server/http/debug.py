"""``/debug``: the timeline of streams as they run, for clients that may see all transcripts.

Without keys and on the loopback these are all on this machine; with keys, those with the key named ``debug``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from ..config import ServerConfig
from ..errors import ConfigError
from ..stream.trace import Debug
from .auth import Authenticator, is_loopback, key_of
from .pages import HEADERS, MEDIA_TYPES

__all__ = ["DEBUG_KEY", "check_debug", "debug_routes"]

DEBUG_KEY = "debug"  # the name of the key that may see all streams
FILES = Path(__file__).parents[2] / "clients" / "timeline_page"
_SERVED = {"": "live.html", "/page.css": "page.css", "/page.js": "page.js", "/live.js": "live.js"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def check_debug(config: ServerConfig, authenticator: Authenticator) -> None:
    """Raise ConfigError if ``--debug`` would show transcripts to a network."""
    if config.debug and not (is_loopback(config.host) or authenticator.needs_key):
        raise ConfigError(
            "--debug shows transcripts: listen on 127.0.0.1, or give a key named "
            f"{DEBUG_KEY} with --api-keys"
        )


def debug_routes(
    debug: Debug | None, config: ServerConfig, authenticator: Authenticator
) -> list[BaseRoute]:
    """Return the routes of the page and of its data; none if ``--debug`` is off."""
    if debug is None:
        return []

    def refusal(request: Request) -> Response | None:
        if authenticator.needs_key:
            account = authenticator.account(key_of(request.headers, request.query_params, ()))
            if account is not None and account.name == DEBUG_KEY:
                return None
            sentence = (
                f"the key named {DEBUG_KEY} is needed: as Authorization: Bearer, or /debug#key=…"
            )
            return _say(sentence, 401)
        # No key: this machine only, addressed as such. A page whose name points here is not.
        name = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        if is_loopback(config.host) and is_loopback(name):
            return None
        return _say("open this page on the machine itself, as 127.0.0.1", 403)

    async def streams(request: Request) -> Response:
        return refusal(request) or _json(debug.streams())

    async def stream(request: Request) -> Response:
        refused = refusal(request)
        if refused is not None:
            return refused
        trace = debug.find(request.path_params["stream"])
        return _say("no such stream", 404) if trace is None else _json(trace.snapshot())

    pages = [Route(f"/debug{path}", _file(FILES / name)) for path, name in _SERVED.items()]
    return [
        *pages,
        Route("/debug/streams", streams),
        Route("/debug/streams/{stream}", stream),
    ]


def _file(path: Path) -> Callable[[Request], Response]:
    """Return a handler for one file, which is read once. Files hold no secret, so they need no key."""
    body = path.read_bytes()
    headers = {**HEADERS, "Content-Security-Policy": _POLICY}

    def handle(request: Request) -> Response:
        return Response(body, media_type=MEDIA_TYPES[path.suffix], headers=headers)

    return handle


def _json(body: object) -> Response:
    return JSONResponse(body, headers={**HEADERS, "Cache-Control": "no-store"})


def _say(sentence: str, status: int) -> Response:
    return PlainTextResponse(sentence + "\n", status_code=status)
