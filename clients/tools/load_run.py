"""What a server says about its own use of the machine, over HTTP.

One run of a load: processes that play the streams, and the server's cost meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
import urllib.request
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ..errors import ClientError
from .load_plan import StreamPlan, share_out
from .load_worker import GO, READY, Assignment, Share, StreamOutcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["GpuUse", "Health", "LoadRun", "Watch", "health_url", "read_health", "run_load"]

_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_BYTES = 1 << 20


class GpuUse(msgspec.Struct, frozen=True):
    """``utilization`` is a share of the time, 0 to 1; None where the server cannot tell."""

    memory_bytes: int = 0
    utilization: float | None = None


class Health(msgspec.Struct, frozen=True):
    """What of ``/healthz`` tells of a load; None: the server does not say."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    gpu: GpuUse | None = None


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


_STOP_SECONDS = 5.0
_COMMAND = (sys.executable, "-m", "whisper_stream.clients.tools.load_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """``outcomes`` are in the order of ``plans``. What the server used is None where it does not tell."""

    plans: tuple[StreamPlan, ...]
    outcomes: tuple[StreamOutcome, ...]
    cpu_seconds: float | None
    memory_growth: int | None = None  # bytes above what it had before the first stream
    gpu_utilization: float | None = None  # 0 to 1
    gpu_memory: int | None = None  # bytes
    player_cpu_seconds: float = 0.0  # of the processes that play


async def run_load(
    url: str, plans: Sequence[StreamPlan], processes: int, key: str | None = None
) -> LoadRun:
    """Play ``plans`` on the server at ``url`` from at most ``processes`` processes.

    Raises:
        ClientError: a process ended too early, or every stream failed.
    """
    async with AsyncExitStack() as stack:
        workers = await asyncio.gather(
            *(
                stack.enter_async_context(_worker(url, share, key))
                for share in share_out(plans, processes)
            )
        )
        await asyncio.gather(*(_ready(worker) for worker in workers))
        watch = Watch(url, await read_health(url))
        looking = asyncio.create_task(watch.look())
        try:
            shares = await asyncio.gather(*(_share(worker) for worker in workers))
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
        watch.last(await read_health(url))
    outcomes = [outcome for share in shares for outcome in share.outcomes]
    outcomes.sort(key=lambda outcome: outcome.stream)
    if all(outcome.failed for outcome in outcomes):
        raise ClientError(f"every stream failed, the first of them: {outcomes[0].failed}")
    return LoadRun(
        plans=tuple(plans),
        outcomes=tuple(outcomes),
        cpu_seconds=watch.cpu_seconds,
        memory_growth=watch.memory_growth,
        gpu_utilization=watch.gpu_utilization,
        gpu_memory=watch.gpu_memory,
        player_cpu_seconds=sum(share.cpu_seconds for share in shares),
    )


@asynccontextmanager
async def _worker(url: str, plans: Sequence[StreamPlan], key: str | None) -> AsyncIterator[Process]:
    """A process that has its assignment. In a session of its own: Ctrl-C reaches only us."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    try:
        # Over stdin: flags and variables of a process can be seen by others, and a key is secret.
        assignment = Assignment(url=url, plans=tuple(plans), key=key)
        process.stdin.write(msgspec.json.encode(assignment) + b"\n")
        await _drain(process)
        yield process
    finally:
        process.stdin.close()  # it ends by itself
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _drain(process: Process) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # what it says tells more
        await process.stdin.drain()


async def _ready(process: Process) -> None:
    assert process.stdout is not None
    if await process.stdout.readline() != READY:
        raise await _ended(process)


async def _share(process: Process) -> Share:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(GO)
    await _drain(process)
    answer = await process.stdout.read()
    if not answer:
        raise await _ended(process)
    return msgspec.json.decode(answer, type=Share)


async def _ended(process: Process) -> ClientError:
    code = await process.wait()
    return ClientError(f"a process that plays streams ended with code {code}; is memory short?")
