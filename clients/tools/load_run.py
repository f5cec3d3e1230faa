"""One run of a load: processes that play the streams, and the server's cost meanwhile."""

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

__all__ = ["GpuUse", "Health", "LoadRun", "ServerWatch", "health_url", "read_health", "run_load"]

_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_MOST_BYTES = 1 << 20


class GpuUse(msgspec.Struct, frozen=True):
    """``utilization`` is a share of the time, 0 to 1; None where the server cannot tell."""

    memory_bytes: int = 0
    utilization: float | None = None


class Health(msgspec.Struct, frozen=True):
    """The figures of ``/healthz`` that say something about a load; None for those it does not have."""

    cpu_seconds: float | None = None
    memory_bytes: int | None = None
    gpu: GpuUse | None = None


class ServerWatch:
    """The health of a server, sampled again and again while a load runs.

    Args:
        url: the address of its streams.
        first: its health before the first stream.
    """

    def __init__(self, url: str, first: Health) -> None:
        self._url = url
        self._samples = [first]

    async def poll(self) -> None:
        """Take a sample each second until cancelled."""
        while True:
            await asyncio.sleep(_PAUSE_SECONDS)
            self._samples.append(await read_health(self._url))

    def add(self, health: Health) -> None:
        """Add one sample."""
        self._samples.append(health)

    @property
    def cpu_seconds(self) -> float | None:
        """Processor time of the server from the first sample to the last; None if it does not tell."""
        first, last = self._samples[0].cpu_seconds, self._samples[-1].cpu_seconds
        return None if first is None or last is None else last - first

    @property
    def memory_growth(self) -> int | None:
        """Most bytes of memory above those of the first sample; None if the server does not tell."""
        sizes = [each.memory_bytes for each in self._samples if each.memory_bytes is not None]
        return max(sizes) - sizes[0] if self._samples[0].memory_bytes is not None else None

    @property
    def gpu_utilization(self) -> float | None:
        """Mean share of the time, over all samples but the first; None without a GPU."""
        shares = [
            each.gpu.utilization
            for each in self._samples[1:]
            if each.gpu is not None and each.gpu.utilization is not None
        ]
        return sum(shares) / len(shares) if shares else None

    @property
    def gpu_memory(self) -> int | None:
        """Most bytes held for tensors; None without a GPU."""
        return max((each.gpu.memory_bytes for each in self._samples if each.gpu), default=None)


def health_url(url: str) -> str:
    """Return the address of ``/healthz`` beside a stream's ``ws://`` or ``wss://`` address."""
    parts = urlsplit(url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, "/healthz", parts.query, ""))


async def read_health(url: str) -> Health:
    """Return the health of the server at ``url``; one without figures if it does not answer."""
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
    """The result of one run; ``outcomes`` are in the order of ``plans``.

    What the server used is None where it does not tell.
    """

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
    """Play all streams to a server, and measure what it uses.

    Args:
        url: the address of its streams.
        plans: the streams.
        processes: how many processes play, at most.
        key: the API key, where the server wants one.

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
        watch = ServerWatch(url, await read_health(url))
        polling = asyncio.create_task(watch.poll())
        try:
            shares = await asyncio.gather(*(_share(worker) for worker in workers))
        finally:
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        watch.add(await read_health(url))
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
    """Start a process and give it its assignment. It is in a session of its own: Ctrl-C reaches only us."""
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
        raise await _exit_error(process)


async def _share(process: Process) -> Share:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(GO)
    await _drain(process)
    answer = await process.stdout.read()
    if not answer:
        raise await _exit_error(process)
    return msgspec.json.decode(answer, type=Share)


async def _exit_error(process: Process) -> ClientError:
    code = await process.wait()
    return ClientError(f"a process that plays streams ended with code {code}; is memory short?")
