"""The messages of a client that the server does not hold yet: audio and control messages, in order. No I/O.

Audio of the segment that is still open is kept longer, for a server that forgets the stream.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from ...server.protocol import messages as wire

__all__ = ["Backlog"]

_PIECE = 256 * 1024  # bytes in a frame; proxies may take less than the server does


@dataclass(slots=True)
class _Item:
    """Audio, or a message.

    ``end`` counts up to and with this item: bytes of audio, or ``flush``, ``config`` and ``eos`` messages.
    """

    message: wire.ClientMessage
    is_audio: bool
    end: int
    answered: bool = False  # a flush whose ``flushed`` has come

    @property
    def size(self) -> int:
        return len(self.message.data) if isinstance(self.message, wire.Audio) else 0


class Backlog:
    """Audio and messages in the order they were added, with a cursor between sent and not sent.

    ::

        held by the server, and not needed by another session (forgotten) | sent | cursor | not sent yet

    "Sent" is on the present connection; "held" is what the server has acknowledged.

    Args:
        replay_bytes: how much audio that the server holds is kept for another session, at most;
            None: no other session is possible.
    """

    def __init__(self, replay_bytes: int | None = None) -> None:
        self._items: deque[_Item] = deque()
        self._sent = 0  # items before the cursor
        self._bytes = 0  # of audio added so far
        self._controls = 0  # messages added so far, to the present session
        self._held_bytes = 0
        self._held_controls = 0
        self._closed_bytes = 0  # of audio whose segments are closed
        self._base = 0  # bytes before the present session's first one
        self._replay_bytes = replay_bytes
        self._configs: list[wire.Config] = []  # forgotten ones, for a new session's start
        # Whether sent items are kept until they are held.
        self._keep = True

    @property
    def size(self) -> int:
        """Bytes of audio that the server is not known to hold."""
        return self._bytes - self._held_bytes

    @property
    def all_sent(self) -> bool:
        """True if nothing is left after the cursor."""
        return self._sent == len(self._items)

    @property
    def replayable(self) -> bool:
        """True if a new session can go on with the stream."""
        return self._keep and self._replay_bytes is not None

    def add(self, message: wire.ClientMessage) -> None:
        """Append audio, cut into pieces, or another message."""
        if not isinstance(message, wire.Audio):
            self._controls += isinstance(message, (wire.Flush, wire.Config, wire.Eos))
            self._items.append(_Item(message, is_audio=False, end=self._controls))
            return
        for at in range(0, len(message.data), _PIECE):
            piece = message.data[at : at + _PIECE]
            self._bytes += len(piece)
            self._items.append(_Item(wire.Audio(data=piece), is_audio=True, end=self._bytes))

    def next(self) -> wire.ClientMessage:
        """Return the item at the cursor. There must be one: see ``all_sent``."""
        return self._items[self._sent].message

    def advance(self) -> None:
        """Move the cursor past one item."""
        if self._keep:
            self._sent += 1
        else:
            item = self._items.popleft()
            self._held_bytes = item.end if item.is_audio else self._held_bytes

    def keep_nothing(self) -> None:
        """Forget what was sent, now and later, as the stream cannot be resumed."""
        while self._sent:
            self._items.popleft()
            self._sent -= 1
        self._keep = False

    def acknowledge(self, held_bytes: int, controls: int) -> None:
        """Forget what the server holds, unless another session may need it.

        Args:
            held_bytes: audio that the server holds of the present session.
            controls: ``flush``, ``config`` and ``eos`` messages that it holds.
        """
        self._held_bytes = max(self._held_bytes, min(self._bytes, self._base + held_bytes))
        self._held_controls = max(self._held_controls, controls)
        self._forget()

    def release(self, position: int) -> None:
        """Forget audio before byte ``position``: its segments are closed, and no new session needs it."""
        self._closed_bytes = max(self._closed_bytes, position)
        self._forget()

    def settle_flush(self, flush_id: str) -> None:
        """Mark the flush as answered, so that a new session is not asked for it again."""
        for item in self._items:
            if isinstance(item.message, wire.Flush) and item.message.id == flush_id:
                if not item.answered:
                    item.answered = True
                    return

    def rewind(self, held_bytes: int, controls: int) -> None:
        """Move the cursor to what a new connection has to send first.

        Args:
            held_bytes: audio that the server holds of the present session.
            controls: ``flush``, ``config`` and ``eos`` messages that it holds.
        """
        self._sent = len(self._items)
        self.acknowledge(held_bytes, controls)
        self._sent = 0
        while self._sent < len(self._items) and self._is_held(self._items[self._sent]):
            self._sent += 1
        if self._sent < len(self._items) and self._items[self._sent].is_audio:
            self._sent += self._split(self._sent, self._held_bytes)

    def restart(self, frame: int) -> int:
        """Begin a new session, whose server knows nothing; return the byte of the stream that it begins with.

        Args:
            frame: bytes of one sample of all channels; the session begins with a whole one.
        """
        kept = [item for item in self._items if item.is_audio or self._is_wanted(item)]
        starts = [item.end - item.size for item in kept if item.is_audio]
        start = max(min(starts, default=self._bytes), min(self._closed_bytes, self._bytes))
        self._base = -(-start // frame) * frame
        self._items = deque(item for item in kept if not item.is_audio or item.end > self._base)
        first = next((n for n, item in enumerate(self._items) if item.is_audio), None)
        if first is not None and self._split(first, self._base):
            del self._items[first]
        self._controls = 0
        for item in self._items:
            if not item.is_audio:
                self._controls += 1
                item.end = self._controls
        self._held_bytes, self._held_controls, self._sent = self._base, 0, 0
        return self._base

    def apply_configs(self, start: wire.Start) -> wire.Start:
        """Return ``start`` with the options that forgotten ``config`` messages have changed."""
        for config in self._configs:
            start = msgspec.structs.replace(start, **_set_options(config))
        return start

    def _forget(self) -> None:
        while self._sent and self._is_over(self._items[0]):
            item = self._items.popleft()
            self._sent -= 1
            if isinstance(item.message, wire.Config):
                self._configs.append(item.message)

    def _is_over(self, item: _Item) -> bool:
        if not self._is_held(item):
            return False
        if self._replay_bytes is None:
            return True
        if item.is_audio:
            oldest = self._held_bytes - self._replay_bytes
            return item.end <= max(self._closed_bytes, oldest)
        return isinstance(item.message, wire.Config) or not self._is_wanted(item)

    @staticmethod
    def _is_wanted(item: _Item) -> bool:
        """Return whether a new session has to get this message, too."""
        return isinstance(item.message, (wire.Flush, wire.Config, wire.Eos)) and not item.answered

    def _is_held(self, item: _Item) -> bool:
        if isinstance(item.message, (wire.Audio, wire.Flush, wire.Config, wire.Eos)):
            return item.end <= (self._held_bytes if item.is_audio else self._held_controls)
        return True  # a ping is answered or not; it is not worth repeating

    def _split(self, index: int, position: int) -> bool:
        """Cut the audio at ``index`` in two at a byte of the stream; False if it is not inside."""
        item = self._items[index]
        assert isinstance(item.message, wire.Audio)
        before = position - (item.end - item.size)
        if not 0 < before < item.size:
            return False
        data = item.message.data
        head = _Item(wire.Audio(data=data[:before]), is_audio=True, end=position)
        item.message = wire.Audio(data=data[before:])
        self._items.insert(index, head)
        return True


def _set_options(config: wire.Config) -> dict[str, object]:
    """Return the options that a ``config`` message sets, by their names in ``start``."""
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}
