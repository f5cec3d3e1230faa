"""What a server says about its own use of processors, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit

import msgspec

__all__ = ["cpu_seconds", "health_url"]

_SECONDS = 5.0
_MOST_BYTES = 1 << 20


class _Health(msgspec.Struct, frozen=True):
    cpu_seconds: float | None = None


def health_url(url: str) -> str:
    """The ``/healthz`` beside a stream's ``ws://`` or ``wss://`` address."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, "/healthz", parts.query, ""))


async def cpu_seconds(url: str) -> float | None:
    """Processor seconds that the server at ``url`` has used so far; None if it does not tell."""
    return await asyncio.to_thread(_read, health_url(url))


def _read(url: str) -> float | None:
    local = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
    proxies = urllib.request.ProxyHandler({} if local else None)
    try:
        with urllib.request.build_opener(proxies).open(url, timeout=_SECONDS) as answer:
            return msgspec.json.decode(answer.read(_MOST_BYTES), type=_Health).cpu_seconds
    except (URLError, OSError, http.client.HTTPException, msgspec.MsgspecError):
        return None
