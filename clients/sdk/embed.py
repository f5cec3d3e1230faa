"""A daemon of our own, for as long as one command runs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ...server.protocol.errors import SERVE_HELP
from ..errors import DaemonError
from ..installed import check_engine

__all__ = ["START_SECONDS", "DaemonOptions", "daemon", "explain_exit"]

START_SECONDS = 1800.0  # a first start may download gigabytes of weights
_STOP_SECONDS = 5.0
_LINE_BYTES = 8192
_FOR_OTHERS = ("WHISPER_STREAM_API_KEYS", "WHISPER_STREAM_CONFIG")
_KEPT_LINES = 50  # of the daemon's stderr, to explain its end


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """Options of the embedded daemon; None leaves the choice to it."""

    model: str = "tiny.en"
    device: str | None = None
    compute_type: str | None = None
    threads: int | None = None
    policy: str | None = None

    def arguments(self) -> list[str]:
        """Return the daemon's command line, without the command."""
        arguments = ["--host", "127.0.0.1", "--port", "0", "--announce", "--exit-with-stdin"]
        arguments += ["--model", self.model]
        for flag, value in (
            ("--device", self.device),
            ("--compute-type", self.compute_type),
            ("--threads", self.threads),
            ("--policy", self.policy),
        ):
            if value is not None:
                arguments += [flag, str(value)]
        return arguments


_COMMAND = (sys.executable, "-m", "whisper_stream.server")


@asynccontextmanager
async def daemon(
    options: DaemonOptions,
    command: Sequence[str] = _COMMAND,
    *,
    start_seconds: float = START_SECONDS,
    stop_seconds: float = _STOP_SECONDS,
) -> AsyncIterator[str]:
    """Start a daemon on a free loopback port and yield its address once it listens.

    It runs in a session of its own, so that Ctrl-C in the terminal reaches only the caller. It ends
    with the context, or when this process dies, as its stdin closes then.

    Args:
        options: what it runs.
        command: the program and its first arguments, before those of ``options``.
        start_seconds: how long it may take to listen. What a first start has downloaded until then is
            kept, and the next one goes on from there.
        stop_seconds: how long it may take to end by itself, and how long once it was asked to.

    Raises:
        NotInstalledError: this installation has no engine.
        DaemonError: it ended before it was listening, and the text is its own error line; or it took
            longer than ``start_seconds``.
    """
    if command is _COMMAND:
        instead = "name a running daemon with --server, or "
        check_engine("captioning without --server", instead=instead)
    process = await asyncio.create_subprocess_exec(
        *command,
        *options.arguments(),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        start_new_session=True,
        env=_environment(),
    )
    assert process.stdin and process.stdout and process.stderr
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    url: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
    readers = asyncio.gather(_read_address(process.stdout, url), _keep(process.stderr, kept))
    listening = False
    try:
        try:
            async with asyncio.timeout(start_seconds):
                address = await url
        except TimeoutError:
            raise DaemonError(
                f"the embedded daemon was not ready within {start_seconds:g} s; start again to go on "
                "with a download, or choose a smaller --model"
            ) from None
        if address is None:
            await _stop(process, stop_seconds, stop_seconds)
            await asyncio.wait([readers], timeout=1.0)  # a grandchild may hold the pipe open
            code = process.returncode
            raise DaemonError(explain_exit(kept, code), 2 if code == 2 else 1)
        listening = True
        yield address
    finally:
        process.stdin.close()
        await _stop(process, stop_seconds if listening else 0.0, stop_seconds)
        readers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await readers


def _environment() -> dict[str, str]:
    """Return our environment without the variables of a daemon that others use, such as its keys."""
    return {name: value for name, value in os.environ.items() if name not in _FOR_OTHERS}


async def _read_address(stdout: asyncio.StreamReader, url: asyncio.Future[str | None]) -> None:
    """Resolve ``url`` with the announced address, or None at the end; read on, so no pipe fills."""
    try:
        async for line in _lines(stdout):
            if not url.done() and (address := _address(line)):
                url.set_result(address)
    finally:
        if not url.done():
            url.set_result(None)


def _address(line: bytes) -> str | None:
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError, TypeError):
        return None


async def _keep(stderr: asyncio.StreamReader, lines: deque[str]) -> None:
    async for line in _lines(stderr):
        lines.append(line.decode(errors="replace").strip())


async def _lines(pipe: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield lines of any length, cut to their first bytes; ``readline`` fails on long ones."""
    line = b""
    while block := await pipe.read(_LINE_BYTES):
        *ended, rest = block.split(b"\n")
        for part in ended:
            yield (line + part)[:_LINE_BYTES]
            line = b""
        line = (line + rest)[:_LINE_BYTES]
    if line:
        yield line


async def _stop(process: Process, patience: float, stop_seconds: float) -> None:
    """Wait for the daemon, which ends once its stdin is closed; then terminate it, then kill it.

    Args:
        patience: seconds before it is terminated.
        stop_seconds: seconds from then until it is killed.
    """
    for wait, end in ((patience, process.terminate), (stop_seconds, process.kill)):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await process.wait()
        if process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            end()
    await process.wait()


def explain_exit(lines: Sequence[str], code: int | None) -> str:
    """Return why the daemon ended: the text of its own error line, or else its last line.

    Args:
        lines: the end of its stderr.
        code: its exit code.
    """
    for line in reversed(lines):
        _, found, reason = line.partition("error: ")
        if found:
            return reason.removesuffix(f"; {SERVE_HELP}")  # the flags are ours
    last = next((line for line in reversed(lines) if line), "it gave no reason")
    return f"the embedded daemon ended with code {code} before it was ready: {last}"
