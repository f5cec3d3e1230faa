"""What a client has said, until the server holds it: audio and control messages, in order. No I/O."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from ..server import wire

__all__ = ["Backlog"]

_PIECE = 256 * 1024  # bytes in a frame; proxies may take less than the server does


@dataclass(slots=True)
class _Item:
    """Audio, or a message. ``end``: bytes of audio, or ``flush``, ``config`` and ``eos`` messages, up to here."""

    message: wire.ClientMessage
    is_audio: bool
    end: int


class Backlog:
    """Items before the cursor were sent on the present connection.

    held by the server (forgotten) | sent | cursor | not sent yet
    """

    def __init__(self) -> None:
        self._items: deque[_Item] = deque()
        self._sent = 0  # items before the cursor
        self._bytes = 0  # of audio added so far
        self._controls = 0  # messages added so far
        self._held_bytes = 0
        # Whether sent items are kept until they are held.
        self._keep = True

    @property
    def size(self) -> int:
        """Bytes of audio that the server is not known to hold."""
        return self._bytes - self._held_bytes

    @property
    def all_sent(self) -> bool:
        return self._sent == len(self._items)

    def add(self, message: wire.ClientMessage) -> None:
        """Add audio in pieces, or another message."""
        if not isinstance(message, wire.Audio):
            self._controls += isinstance(message, (wire.Flush, wire.Config, wire.Eos))
            self._items.append(_Item(message, is_audio=False, end=self._controls))
            return
        for at in range(0, len(message.data), _PIECE):
            piece = message.data[at : at + _PIECE]
            self._bytes += len(piece)
            self._items.append(_Item(wire.Audio(data=piece), is_audio=True, end=self._bytes))

    def next(self) -> wire.ClientMessage:
        """The item at the cursor. There must be one: see ``all_sent``."""
        return self._items[self._sent].message

    def sent(self) -> None:
        """Move the cursor past one item."""
        if self._keep:
            self._sent += 1
        else:
            item = self._items.popleft()
            self._held_bytes = item.end if item.is_audio else self._held_bytes

    def keep_nothing(self) -> None:
        """The stream cannot be resumed: what is sent is forgotten."""
        while self._sent:
            self._items.popleft()
            self._sent -= 1
        self._keep = False

    def held(self, held_bytes: int, controls: int) -> None:
        """The server holds so much: forget it."""
        while self._sent and self._is_held(self._items[0], held_bytes, controls):
            item = self._items.popleft()
            self._sent -= 1
            self._held_bytes = item.end if item.is_audio else self._held_bytes

    def rewind(self, held_bytes: int, controls: int) -> None:
        """A new connection, to a server that holds so much: everything after it is to be sent."""
        self._sent = len(self._items)
        self.held(held_bytes, controls)
        self._sent = 0
        if self._items and self._items[0].is_audio:
            first = self._items[0]
            assert isinstance(first.message, wire.Audio)
            start = first.end - len(first.message.data)
            first.message = wire.Audio(data=first.message.data[max(0, held_bytes - start) :])
            self._held_bytes = max(self._held_bytes, held_bytes)

    @staticmethod
    def _is_held(item: _Item, held_bytes: int, controls: int) -> bool:
        if isinstance(item.message, (wire.Audio, wire.Flush, wire.Config, wire.Eos)):
            return item.end <= (held_bytes if item.is_audio else controls)
        return True  # a ping is answered or not; it is not worth repeating
