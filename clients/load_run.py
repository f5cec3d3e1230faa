"""One run of a load: processes that play the streams, and the server's cost meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from .errors import ClientError
from .load_health import Watch, read_health
from .load_plan import StreamPlan, share_out
from .load_stream import StreamOutcome
from .load_worker import GO, READY, Assignment, Share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["LoadRun", "run_load"]

_STOP_SECONDS = 5.0
_COMMAND = (sys.executable, "-m", "whisper_stream.clients.load_worker")


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
