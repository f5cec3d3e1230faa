"""What a server says about its own use of the machine, over HTTP."""

from __future__ import annotations

import asyncio
import http.client
import urllib.request
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit

import msgspec

__all__ = ["Gpu", "Health", "Watch", "health_url", "read_health"]

_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_BYTES = 1 << 20


class Gpu(msgspec.Struct, frozen=True):
    """``utilization`` is a share of the time, 0 to 1; None where the server cannot tell."""

    memory_bytes: int = 0
    utilization: float | None = None


class Health(msgspec.Struct, frozen=True):
    """What of ``/healthz`` tells of a load; None: the server does not say."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    gpu: Gpu | None = None


class Watch:
    """Looks at a server again and again while a load runs."""

    def __init__(self, url: str, first: Health) -> None:
        self._url = url
        self._seen = [first]

    async def look(self) -> None:
        """Never ends; cancel it."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            self._seen.append(await read_health(self._url))

    def last(self, health: Health) -> None:
        self._seen.append(health)

    @property
    def cpu_seconds(self) -> float | None:
        """Used from the first look to the last."""
        first, last = self._seen[0].cpu_seconds, self._seen[-1].cpu_seconds
        return None if first is None or last is None else last - first

    @property
    def memory_growth(self) -> int | None:
        """Bytes of memory above the first look, at most."""
        sizes = [each.memory_bytes for each in self._seen if each.memory_bytes is not None]
        return max(sizes) - sizes[0] if self._seen[0].memory_bytes is not None else None

    @property
    def gpu_utilization(self) -> float | None:
        """Mean over the looks at which streams were running."""
        shares = [
            each.gpu.utilization
            for each in self._seen[1:]
            if each.gpu is not None and each.gpu.utilization is not None
        ]
        return sum(shares) / len(shares) if shares else None

    @property
    def gpu_memory(self) -> int | None:
        """Bytes held for tensors, at most."""
        return max((each.gpu.memory_bytes for each in self._seen if each.gpu), default=None)


def health_url(url: str) -> str:
    """The ``/healthz`` beside a stream's ``ws://`` or ``wss://`` address."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, "/healthz", parts.query, ""))


async def read_health(url: str) -> Health:
    """What the server at ``url`` says now; nothing, if it does not answer."""
    return await asyncio.to_thread(_read, health_url(url))


def _read(url: str) -> Health:
    local = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
    proxies = urllib.request.ProxyHandler({} if local else None)
    try:
        with urllib.request.build_opener(proxies).open(url, timeout=_SECONDS) as answer:
            return msgspec.json.decode(answer.read(_MOST_BYTES), type=Health)
    except (URLError, OSError, http.client.HTTPException, msgspec.MsgspecError):
        return Health()
