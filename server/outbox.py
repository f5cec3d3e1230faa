"""Messages on their way to one client: many tasks make them, one sends them."""

from __future__ import annotations

import asyncio
from collections import deque

from .errors import CloseCode
from .wire import Partial, ServerMessage

__all__ = ["Outbox"]

HIGH_WATER = 256  # messages; above it whoever makes more should wait
LOW_WATER = 64


class Outbox:
    """A queue whose unsent partials collapse into the newest; nothing else is ever dropped.

    ``put`` never waits, so that the events of one step stay together; producers await ``writable``
    before the next step. All methods belong to one event loop.
    """

    def __init__(self, high_water: int = HIGH_WATER, low_water: int = LOW_WATER) -> None:
        self._queue: deque[ServerMessage] = deque()
        self._high_water = high_water
        self._low_water = low_water
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        # Code and reason to close with once the queue is empty; set by close().
        self.closing: tuple[CloseCode, str] | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, message: ServerMessage) -> None:
        """Queue a message. After close() it is dropped: the close must be the last thing sent."""
        if self.closing is not None:
            return
        if isinstance(message, Partial):
            self._drop_stale_partial()
        self._queue.append(message)
        self._readable.set()
        if len(self._queue) >= self._high_water:
            self._writable.clear()

    def close(self, code: CloseCode, reason: str) -> None:
        """Let the queue run empty, then close. The first call decides."""
        if self.closing is None:
            self.closing = (code, reason)
        self._readable.set()

    async def get(self) -> ServerMessage | None:
        """Return the next message, or None once the queue is closed and empty."""
        while not self._queue:
            if self.closing is not None:
                return None
            self._readable.clear()
            await self._readable.wait()
        message = self._queue.popleft()
        if len(self._queue) <= self._low_water:
            self._writable.set()
        return message

    def waiting(self) -> tuple[ServerMessage, ...]:
        """What is queued now, oldest first."""
        return tuple(self._queue)

    async def writable(self) -> None:
        """Wait while the client reads too slowly for more."""
        await self._writable.wait()

    def release(self) -> None:
        """Nobody reads any more: whoever waits to write goes on."""
        self._high_water = 1 << 62
        self._writable.set()

    def _drop_stale_partial(self) -> None:
        # At most one partial is queued, and seldom far from the end.
        for index in range(len(self._queue) - 1, -1, -1):
            if isinstance(self._queue[index], Partial):
                del self._queue[index]
                return
