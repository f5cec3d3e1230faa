"""Messages on their way to one client: many tasks make them, one sends them.

What one stream says: numbered, kept until the client has it, and sent to whoever is connected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import msgspec

from ..protocol.errors import CloseCode
from ..protocol.messages import (
    Commit,
    Done,
    Gap,
    Language,
    Partial,
    Segment,
    ServerMessage,
    Snapshot,
    SpeechStarted,
    SpeechStopped,
    Word,
)

__all__ = ["Mailbox", "Outbox"]

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


MOST_KEPT = 4096  # messages that the client has not acknowledged; above it the stream waits


# What readers see. Acks, tokens, answers and mistakes are between the client and us.
_PUBLIC = (SpeechStarted, SpeechStopped, Partial, Commit, Segment, Language, Gap, Done)


class Mailbox:
    """Outlives connections. Messages that last are kept until acknowledged, if ``keep`` is set.

    Acks, pongs, partials and answers to mistakes belong to a connection: they are numbered as well,
    but not kept.
    """

    def __init__(self, outbox: Outbox | None = None) -> None:
        self.seq = 0  # of the last message
        self.keep = False
        self._outbox = outbox
        self._kept: deque[ServerMessage] = deque()
        self._few_kept = asyncio.Event()
        self._few_kept.set()
        self._partial: Partial | None = None  # the newest, for whoever connects next
        self._words: list[Word] = []  # committed since the last segment was closed
        # Told of everything that the transcript is made of, and None at its end.
        self.readers: set[Callable[[ServerMessage | None], None]] = set()
        # Told of every message; for the daemon's /debug page.
        self.watch: Callable[[ServerMessage], None] | None = None
        # Code and reason with which the stream's connection ends; set by close().
        self.closing: tuple[CloseCode, str] | None = None

    @property
    def kept(self) -> int:
        """Messages waiting to be acknowledged."""
        return len(self._kept)

    def put(self, message: ServerMessage, *, lasting: bool = False) -> None:
        """Number a message, keep it if it lasts, and send it if somebody is connected."""
        if self.closing is not None:
            return
        self.seq += 1
        message = msgspec.structs.replace(message, seq=self.seq)
        if isinstance(message, Partial):
            self._partial = message
        if self.watch is not None:
            self.watch(message)
        self._note(message)
        if lasting and self.keep:
            self._kept.append(message)
            if len(self._kept) >= MOST_KEPT:
                self._few_kept.clear()
        if self._outbox is not None:
            self._outbox.put(message)

    def snapshot(self, segments: tuple[Segment, ...]) -> Snapshot:
        """What a reader who joins now has missed."""
        partial = () if self._partial is None else self._partial.words
        words = tuple(self._words)
        return Snapshot(seq=self.seq, segments=segments, words=words, partial=partial)

    def _note(self, message: ServerMessage) -> None:
        match message:
            case Commit(words=words):
                self._words += words
            case Segment():
                self._words.clear()
        if isinstance(message, _PUBLIC):
            for reader in tuple(self.readers):
                reader(message)

    def close(self, code: CloseCode, reason: str) -> None:
        """Nothing more will be said; the first call decides."""
        if self.closing is None:
            self.closing = (code, reason)
            for reader in tuple(self.readers):
                reader(None)
        if self._outbox is not None:
            self._outbox.close(*self.closing)

    def acknowledge(self, seq: int) -> None:
        """Forget kept messages up to ``seq``."""
        while self._kept and self._kept[0].seq <= seq:
            self._kept.popleft()
        if len(self._kept) < MOST_KEPT:
            self._few_kept.set()

    def attach(self, outbox: Outbox, first: ServerMessage, seen: int) -> None:
        """Send from now on to ``outbox``: first ``first``, then all kept messages after ``seen``.

        ``first`` gets no number of its own: until what follows it has arrived, ``seen`` is the last.
        """
        self.acknowledge(seen)
        self.seq = max(self.seq, seen)
        outbox.put(msgspec.structs.replace(first, seq=seen))
        for message in self._kept:
            outbox.put(message)
        if self._partial is not None and self.closing is None:
            self.seq += 1
            outbox.put(msgspec.structs.replace(self._partial, seq=self.seq))
        self._outbox = outbox
        if self.closing is not None:
            outbox.close(*self.closing)

    def detach(self, outbox: Outbox) -> None:
        """The connection of ``outbox`` has ended."""
        if self._outbox is outbox:
            self._outbox = None
        outbox.release()

    def give_up(self) -> None:
        """The client will not come back: nothing is kept any more."""
        self.keep = False
        self._kept.clear()
        self._few_kept.set()

    async def writable(self) -> None:
        """Wait while the client reads, or acknowledges, too slowly for more."""
        await self._few_kept.wait()
        if self._outbox is not None:
            await self._outbox.writable()
