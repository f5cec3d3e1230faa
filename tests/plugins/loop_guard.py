"""A guard of event loops: a test fails if the package makes a blocking call in a thread whose loop is running."""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator
from typing import NamedTuple

import blockbuster.blockbuster
import pytest
from blockbuster import BlockBuster, BlockingError

__all__ = ["LoopGuard"]

PACKAGES = [f"whisper_stream.{layer}" for layer in ("model", "streamer", "server", "clients")]


class Allowance(NamedTuple):
    """A function that may block a loop, with all that it calls, and why that holds nobody up."""

    file: str
    function: str
    reason: str


ALLOWED = [
    Allowance("logging/__init__.py", "emit", "a line on standard error, which is read at once"),
    Allowance("server/process_stats.py", "memory_bytes", "/proc is no disk"),
    Allowance("server/stream/journal.py", "_open", "before the daemon has a client"),
    Allowance("server/stream/registry.py", "recover", "before the daemon has a client"),
    Allowance("server/cluster/job_line.py", "__init__", "before the daemon has a client"),
    Allowance(
        "server/cluster/child.py", "start", "milliseconds, and only when a process is started"
    ),
    Allowance("server/cluster/child.py", "reap", "the daemon ends, and the process is killed"),
    Allowance("server/cluster/ipc.py", "close", "one byte, when the daemon ends"),
    Allowance("clients/sources/files.py", "damage", "a few bytes of a file that was just read"),
    Allowance("clients/cli/play.py", "converse", "this loop has no other stream"),
    Allowance("clients/tools/load.py", "_report", "the streams have ended"),
    Allowance("server/stream/archive.py", "find", "one row by its key, and only when asked for"),
    *(
        Allowance("streamer/audio/container.py", name, "work of its own, five seconds at a time")
        for name in ("more", "close")
    ),
    *(
        Allowance(f"tests/server/stream/{file}.py", name, "a journal alone on its loop")
        for file in ("test_journal", "test_journal_damage")
        for name in ("journal", "write", "scenario")
    ),
]


class LoopGuard:
    """Pytest plugin: one guard for the whole run; each test answers for the calls made while it ran."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._guard: BlockBuster | None = None

    def pytest_sessionstart(self) -> None:
        seen = self._seen

        class Recorded(BlockingError):
            """Also remembered, for the package may handle the error."""

            def __init__(self, func: str) -> None:
                super().__init__(func)
                seen.append(f"{self}\n{''.join(traceback.format_stack(limit=25)[:-2])}")

        blockbuster.blockbuster.BlockingError = Recorded  # type: ignore[misc]
        self._guard = BlockBuster(PACKAGES)
        for call in self._guard.functions.values():
            for allowed in ALLOWED:
                call.can_block_in(allowed.file, allowed.function)
        self._guard.activate()

    def pytest_sessionfinish(self) -> None:
        if self._guard is not None:
            self._guard.deactivate()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        # Playwright keeps a loop running in the test's own thread, whatever the test calls there.
        drives_browser = any("chromium" in mark.args for mark in item.iter_markers("needs"))
        if drives_browser and self._guard is not None:
            self._guard.deactivate()
        try:
            return (yield)
        finally:
            if drives_browser and self._guard is not None:
                self._guard.activate()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self._seen.clear()
        yield
        if self._seen:
            pytest.fail("an event loop was blocked:\n" + self._seen[0], pytrace=False)
