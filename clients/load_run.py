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
from .load_health import cpu_seconds
from .load_plan import StreamPlan, share_out
from .load_stream import StreamOutcome
from .load_worker import GO, READY, Assignment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["LoadRun", "run_load"]

_STOP_SECONDS = 5.0
_COMMAND = (sys.executable, "-m", "whisper_stream.clients.load_worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRun:
    """``outcomes`` are in the order of ``plans``; ``cpu_seconds`` of the server, if it tells."""

    plans: tuple[StreamPlan, ...]
    outcomes: tuple[StreamOutcome, ...]
    cpu_seconds: float | None


async def run_load(url: str, plans: Sequence[StreamPlan], processes: int) -> LoadRun:
    """Play ``plans`` on the server at ``url`` from at most ``processes`` processes.

    Raises:
        ClientError: a process ended too early, or every stream failed.
    """
    async with AsyncExitStack() as stack:
        workers = await asyncio.gather(
            *(
                stack.enter_async_context(_worker(url, share))
                for share in share_out(plans, processes)
            )
        )
        await asyncio.gather(*(_ready(worker) for worker in workers))
        before = await cpu_seconds(url)
        shares = await asyncio.gather(*(_outcomes(worker) for worker in workers))
        after = await cpu_seconds(url)
    outcomes = sorted((one for share in shares for one in share), key=lambda one: one.stream)
    if all(outcome.failed for outcome in outcomes):
        raise ClientError(f"every stream failed, the first of them: {outcomes[0].failed}")
    cost = None if before is None or after is None else after - before
    return LoadRun(plans=tuple(plans), outcomes=tuple(outcomes), cpu_seconds=cost)


@asynccontextmanager
async def _worker(url: str, plans: Sequence[StreamPlan]) -> AsyncIterator[Process]:
    """A process that has its assignment. In a session of its own: Ctrl-C reaches only us."""
    process = await asyncio.create_subprocess_exec(
        *_COMMAND, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    assert process.stdin is not None
    try:
        assignment = Assignment(url=url, plans=tuple(plans))
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


async def _outcomes(process: Process) -> list[StreamOutcome]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(GO)
    await _drain(process)
    answer = await process.stdout.read()
    if not answer:
        raise await _ended(process)
    return msgspec.json.decode(answer, type=list[StreamOutcome])


async def _ended(process: Process) -> ClientError:
    code = await process.wait()
    return ClientError(f"a process that plays streams ended with code {code}; is memory short?")
