"""The captions page and the JavaScript client, served from the package's own files.

The page loads nothing from anywhere else, and its headers forbid that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from ... import __version__
from .asgi import is_host_header

__all__ = ["page_routes"]

# In a wheel and in a checkout alike, the clients lie beside the server.
FILES = Path(__file__).parents[2] / "clients" / "browser"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".ts": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
# "'self'" covers websockets in newer browsers only; {host} names them for the others.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'{host}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",
    "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_routes(model: str, languages: Sequence[str]) -> list[BaseRoute]:
    """Return the routes of the page: ``/``, its files by name, and ``/page.json`` with the facts that it shows.

    Args:
        model: the model's name.
        languages: codes a stream may ask for; empty: English only.
    """
    facts = {"model": model, "languages": list(languages), "version": __version__}

    async def tell_facts(request: Request) -> Response:
        return JSONResponse(facts, headers={"Cache-Control": "no-cache"})

    routes: list[BaseRoute] = [Route("/page.json", tell_facts)]
    for path in sorted(FILES.iterdir()):
        if path.suffix in MEDIA_TYPES:
            name = "" if path.name == "index.html" else path.name
            routes.append(Route(f"/{name}", _file(path)))
    return routes


def _file(path: Path) -> Any:
    """Return a handler for one file, which is read once: no name from the network is ever opened."""
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    async def handle(request: Request) -> Response:
        headers = {
            **HEADERS,
            "Content-Security-Policy": _policy(request.headers.get("host", "")),
            "ETag": tag,
        }
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=MEDIA_TYPES[path.suffix], headers=headers)

    return handle


def _policy(host: str) -> str:
    named = f" ws://{host} wss://{host}" if is_host_header(host) else ""
    return POLICY.format(host=named)
