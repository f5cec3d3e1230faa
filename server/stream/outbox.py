"""Messages on their way: what a stream says, kept until its client has it, and the queue to one websocket."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from ..protocol.errors import CloseCode
from ..protocol.messages import (
    Ack,
    Commit,
    Done,
    Gap,
    Lag,
    Language,
    Partial,
    Segment,
    ServerMessage,
    Snapshot,
    SpeechStarted,
    SpeechStopped,
    Word,
)

__all__ = ["Outbox", "SendQueue"]

HIGH_WATER = 256  # messages in a queue; above it, producers wait and readers are let go
LOW_WATER = 64
MOST_KEPT = 4096  # messages that the client has not acknowledged; above it the stream waits

_PASSING = (Partial, Lag, Ack)  # of what a stream says; worth nothing to a later connection
# What readers see. Acks, tokens, answers and mistakes are between the client and us.
_PUBLIC = (SpeechStarted, SpeechStopped, Partial, Commit, Segment, Language, Gap, Done)


class SendQueue:
    """The queue to one websocket. Unsent partials collapse into the newest; nothing else is dropped.

    ``put`` never waits, so that the messages of one step stay together; producers await ``writable``
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
        """Return what is queued now, oldest first."""
        return tuple(self._queue)

    async def writable(self) -> None:
        """Wait while the client reads too slowly for more."""
        await self._writable.wait()

    def release(self) -> None:
        """Let producers go on, now and later: nobody reads this queue again."""
        self._high_water = 1 << 62
        self._writable.set()

    def _drop_stale_partial(self) -> None:
        # At most one partial is queued, and seldom far from the end.
        for index in range(len(self._queue) - 1, -1, -1):
            if isinstance(self._queue[index], Partial):
                del self._queue[index]
                return


class Outbox:
    """Everything that one stream says. It outlives connections.

    ``publish`` takes what the stream says: kept until acknowledged, if ``keep`` is set. ``reply`` takes
    answers that belong to a connection: numbered as well, but not kept.

    Args:
        queue: to the connection that the outbox begins with.

    Attributes:
        seq: number of the last message.
        keep: whether messages are kept for a client that may come back.
        closing: code and reason with which the stream's connection ends; set by close().
    """

    def __init__(self, queue: SendQueue | None = None, *, keep: bool = False) -> None:
        self.seq = 0
        self.keep = keep
        self.closing: tuple[CloseCode, str] | None = None
        self._queue = queue
        self._kept: deque[ServerMessage] = deque()
        self._few_kept = asyncio.Event()
        self._few_kept.set()
        self._partial: Partial | None = None  # the newest, for the connection that comes next
        self._words: list[Word] = []  # committed since the last segment was closed
        self._readers: set[SendQueue] = set()

    @property
    def kept(self) -> int:
        """Messages waiting to be acknowledged."""
        return len(self._kept)

    def publish(self, message: ServerMessage) -> None:
        """Number a message of the stream, keep it if it lasts, and send it to all who are connected."""
        if self.closing is not None:
            return
        message = self._number(message)
        self._note(message)
        if self.keep and not isinstance(message, _PASSING):
            self._kept.append(message)
            if len(self._kept) >= MOST_KEPT:
                self._few_kept.clear()
        if self._queue is not None:
            self._queue.put(message)

    def reply(self, message: ServerMessage) -> None:
        """Number an answer to the client, and send it if it is connected."""
        if self.closing is not None:
            return
        message = self._number(message)
        if self._queue is not None:
            self._queue.put(message)

    def close(self, code: CloseCode, reason: str) -> None:
        """End the stream's connection, and that of every reader; the first call decides."""
        if self.closing is None:
            self.closing = (code, reason)
            for reader in self._readers:
                reader.close(CloseCode.NORMAL, "done")
        if self._queue is not None:
            self._queue.close(*self.closing)

    async def writable(self) -> None:
        """Wait while the client reads, or acknowledges, too slowly for more."""
        await self._few_kept.wait()
        if self._queue is not None:
            await self._queue.writable()

    # The client

    def acknowledge(self, seq: int) -> None:
        """Forget kept messages up to ``seq``."""
        while self._kept and self._kept[0].seq <= seq:
            self._kept.popleft()
        if len(self._kept) < MOST_KEPT:
            self._few_kept.set()

    def attach(self, queue: SendQueue, first: ServerMessage, seen: int) -> None:
        """Send from now on to ``queue``: first ``first``, then all kept messages after ``seen``.

        ``first`` gets no number of its own: until what follows it has arrived, ``seen`` is the last.
        """
        self.acknowledge(seen)
        self.seq = max(self.seq, seen)
        queue.put(msgspec.structs.replace(first, seq=seen))
        for message in self._kept:
            queue.put(message)
        if self._partial is not None and self.closing is None:
            queue.put(self._number(self._partial))
        self._queue = queue
        if self.closing is not None:
            queue.close(*self.closing)

    def detach(self, queue: SendQueue) -> None:
        """Stop sending to ``queue``: its connection has ended."""
        if self._queue is queue:
            self._queue = None
        queue.release()

    def give_up(self) -> None:
        """Keep nothing from now on: the client will not come back."""
        self.keep = False
        self._kept.clear()
        self._few_kept.set()

    # Readers

    @property
    def readers(self) -> int:
        """The number of those who read along."""
        return len(self._readers)

    def join(self, segments: tuple[Segment, ...]) -> SendQueue:
        """Return the queue to one more reader: first what it has missed, then all that is public.

        One that falls too far behind is let go, with the advice to join again.

        Args:
            segments: closed so far.
        """
        queue = SendQueue()
        queue.put(self.snapshot(segments))
        if self.closing is not None:
            queue.close(*self.closing)
        self._readers.add(queue)
        return queue

    def leave(self, queue: SendQueue) -> None:
        """Forget a reader."""
        self._readers.discard(queue)

    def snapshot(self, segments: tuple[Segment, ...]) -> Snapshot:
        """Return what a reader who joins now has missed."""
        partial = () if self._partial is None else self._partial.words
        words = tuple(self._words)
        return Snapshot(seq=self.seq, segments=segments, words=words, partial=partial)

    def _number(self, message: ServerMessage) -> ServerMessage:
        self.seq += 1
        return msgspec.structs.replace(message, seq=self.seq)

    def _note(self, message: ServerMessage) -> None:
        match message:
            case Partial():
                self._partial = message
            case Commit(words=words):
                self._words += words
            case Segment():
                self._words.clear()
        if isinstance(message, _PUBLIC):
            for reader in self._readers:
                if len(reader) >= HIGH_WATER:
                    reader.close(CloseCode.TRY_AGAIN_LATER, "you read too slowly; join again")
                else:
                    reader.put(message)
