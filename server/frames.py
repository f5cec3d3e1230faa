"""A client's frames as they come, and whether it has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Message
from starlette.websockets import WebSocket

__all__ = ["Frames"]


class Frames:
    """What one websocket's client sends, waited for with patience while audio is expected.

    Args:
        patience: seconds that the client may be silent, as things are.
        expected: whether audio, or what begins a stream, is expected now.
    """

    def __init__(
        self, websocket: WebSocket, patience: Callable[[], float], expected: Callable[[], bool]
    ) -> None:
        self._websocket = websocket
        self._patience = patience
        self._expected = expected
        self._loop = asyncio.get_running_loop()
        # Of the reader, while it waits for a frame, and since when: to wake it without one.
        self._waiting: asyncio.Timeout | None = None
        self._waiting_since = 0.0
        # One timer looks after all waits: arming one for every frame costs more than reading it.
        self._watchdog: asyncio.TimerHandle | None = None

    async def next(self) -> Message | None:
        """Return the next frame; None: nothing came for long, or ``wake`` was called."""
        self._waiting_since = self._loop.time()
        try:
            async with asyncio.timeout(None) as self._waiting:
                return await self._websocket.receive()
        except TimeoutError:
            return None
        finally:
            self._waiting = None

    def wake(self) -> None:
        """End the reader's wait, if audio is expected. A frame that comes meanwhile is not lost."""
        if self._waiting is not None and not self._waiting.expired() and self._expected():
            self._waiting.reschedule(self._loop.time())

    def watch(self) -> None:
        """Look from now on whether the client is silent for too long, until ``close``."""
        self._watchdog = self._loop.call_later(self._patience(), self._look)

    def close(self) -> None:
        """Watch the client no more."""
        if self._watchdog is not None:
            self._watchdog.cancel()

    def _look(self) -> None:
        patience = self._patience()
        silent = 0.0 if self._waiting is None else self._loop.time() - self._waiting_since
        if silent >= patience:
            self.wake()
            silent = 0.0
        self._watchdog = self._loop.call_later(patience - silent, self._look)
