"""A guard of event loops: a test fails if the package makes a blocking call while a loop is running."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

import blockbuster.blockbuster
import pytest
from blockbuster import BlockBuster, BlockingError

__all__ = ["LoopGuard"]

PACKAGES = [f"whisper_stream.{layer}" for layer in ("model", "streamer", "server", "clients")]


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
        self._guard.activate()

    def pytest_sessionfinish(self) -> None:
        if self._guard is not None:
            self._guard.deactivate()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self._seen.clear()
        yield
        if self._seen:
            pytest.fail("an event loop was blocked:\n" + self._seen[0], pytrace=False)
