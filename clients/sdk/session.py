"""What a client has said, until the server holds it: audio and control messages, in order. No I/O.

Audio of the segment that is still open is kept longer, for a server that forgets the stream.

One stream as its client knows it, whatever connections and sessions it takes. No I/O.

What was said and is not held by the server, what has arrived, and how a new connection goes on: with the
same session, or, where the server has forgotten it, with a new one from the last closed segment on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ...model.media.pcm import frame_bytes
from ...server.protocol import messages as wire
from ...server.protocol.errors import ErrorCode
from ..errors import ConnectionLost, RemoteError
from .session_merge import Origin, Story

__all__ = ["Backlog", "Session"]

_PIECE = 256 * 1024  # bytes in a frame; proxies may take less than the server does


@dataclass(slots=True)
class _Item:
    """Audio, or a message. ``end``: bytes of audio, or ``flush``, ``config`` and ``eos`` messages, up to here."""

    message: wire.ClientMessage
    is_audio: bool
    end: int
    answered: bool = False  # a flush whose ``flushed`` has come

    @property
    def size(self) -> int:
        return len(self.message.data) if isinstance(self.message, wire.Audio) else 0


class Backlog:
    """Items before the cursor were sent on the present connection.

    held by the server and not needed by another one (forgotten) | sent | cursor | not sent yet

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
        return self._sent == len(self._items)

    @property
    def replayable(self) -> bool:
        """Whether a new session can go on with the stream."""
        return self._keep and self._replay_bytes is not None

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
        """The server holds so much of the present session: forget it, unless it may be needed."""
        self._held_bytes = max(self._held_bytes, min(self._bytes, self._base + held_bytes))
        self._held_controls = max(self._held_controls, controls)
        self._forget()

    def closed(self, position: int) -> None:
        """All segments up to this byte are closed: no new session needs it."""
        self._closed_bytes = max(self._closed_bytes, position)
        self._forget()

    def answered(self, flush_id: str) -> None:
        """A new session shall not be asked again for this flush."""
        for item in self._items:
            if isinstance(item.message, wire.Flush) and item.message.id == flush_id:
                if not item.answered:
                    item.answered = True
                    return

    def rewind(self, held_bytes: int, controls: int) -> None:
        """A new connection, to a server that holds so much: everything after it is to be sent."""
        self._sent = len(self._items)
        self.held(held_bytes, controls)
        self._sent = 0
        while self._sent < len(self._items) and self._is_held(self._items[self._sent]):
            self._sent += 1
        if self._sent < len(self._items) and self._items[self._sent].is_audio:
            self._sent += self._split(self._sent, self._held_bytes)

    def restart(self, frame: int) -> int:
        """A new session, that knows nothing: return the byte of the stream that it begins with.

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

    def changed(self, start: wire.Start) -> wire.Start:
        """``start`` with the options that forgotten ``config`` messages have changed."""
        for config in self._configs:
            start = msgspec.structs.replace(start, **_given(config))
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
        """Whether a new session would have to be told this message."""
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


def _given(config: wire.Config) -> dict[str, object]:
    """The options that a ``config`` message names, by their names in ``start``."""
    values = {name: getattr(config, name) for name in config.__struct_fields__}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


_ACK_MESSAGES, _ACK_SECONDS = 32, 0.5  # how seldom the server is told what has arrived
_REPLAY_SECONDS = 60  # of audio kept at most that the server holds, in case it forgets the stream
_FULL = (ErrorCode.TOO_MANY_STREAMS, ErrorCode.OVERLOADED, ErrorCode.LIMIT_REACHED)


class Session:
    """The stream that ``start`` opens.

    Attributes:
        backlog: what the client has said, until the server holds it.
        opened: the server has said ``ready``.
    """

    def __init__(self, start: wire.Start) -> None:
        self._start = start
        # bytes; 0: no replay, as containers cannot be begun in the middle
        self._frame = frame_bytes(start.encoding, start.channels) or 0
        second = start.sample_rate * self._frame
        self.backlog = Backlog(_REPLAY_SECONDS * second if second else None)
        self._story = Story()
        self._ready: wire.Ready | None = None
        self._ending = False  # eos was said
        self._forgotten = False  # the server does not know the session any more
        self._seq = 0  # the highest received
        self._acked = 0  # the highest that the server was told of
        self._acked_at = 0.0

    @property
    def opened(self) -> bool:
        return self._ready is not None

    @property
    def resumable(self) -> bool:
        """Whether the server keeps the stream for a new connection."""
        return self._ready is not None and self._ready.resume_seconds > 0

    @property
    def _replayable(self) -> bool:
        return self.resumable and self.backlog.replayable

    def say(self, message: wire.ClientMessage) -> None:
        """The client says this: it is to be sent, and kept until the server holds it."""
        self._ending = self._ending or isinstance(message, wire.Eos)
        self.backlog.add(message)

    def note(self, message: wire.ServerMessage) -> None:
        """This has arrived."""
        self._seq = max(self._seq, message.seq)
        match message:
            case wire.Ready():
                self._ready = message
                if not self.resumable:
                    self.backlog.keep_nothing()
            case wire.Ack():
                self.backlog.held(message.bytes, message.controls)

    def tell(self, message: wire.ServerMessage) -> Iterator[wire.ServerMessage]:
        """What a message means for the stream as a whole."""
        for event in self._story.tell(message):
            match event:
                case wire.Segment() if self._frame:
                    self.backlog.closed(round(event.end * self._start.sample_rate) * self._frame)
                case wire.Flushed():
                    self.backlog.answered(event.id)
            yield event

    def stops_early(self, message: wire.ServerMessage) -> bool:
        """Whether the server ends a stream that its client goes on with."""
        return isinstance(message, wire.Done) and not self._ending and self._replayable

    def seen(self, now: float) -> wire.Seen | None:
        """What to acknowledge, now and then; ``now`` in seconds of any clock that only goes on."""
        many = self._seq - self._acked >= _ACK_MESSAGES
        due = self.resumable and (many or now - self._acked_at >= _ACK_SECONDS)
        if not due or self._seq <= self._acked:
            return None
        self._acked, self._acked_at = self._seq, now
        return wire.Seen(seq=self._seq)

    def greeting(self) -> wire.ClientMessage:
        """The first message on a new connection."""
        if self._ready is None or self._forgotten:
            return self.backlog.changed(self._start)
        session, token = self._ready.session, self._ready.token
        return wire.Resume(session=session, token=token, seq=self._seq)

    def accepted(self, answer: wire.ServerMessage) -> wire.ServerMessage | None:
        """Go on with a new connection: what to tell of the ``answer`` to the greeting.

        None: there is no going on with this one, but trying again may help.

        Raises:
            RemoteError: the stream was never opened, and never will be.
            ConnectionLost: the server will not go on with the stream.
        """
        match answer:
            case wire.Resumed():
                self.backlog.rewind(answer.bytes, answer.controls)
                return answer
            case wire.Ready() if self._ready is None:
                self.backlog.rewind(0, 0)
                self._seq = 0
                self.note(answer)
                return answer
            case wire.Ready():
                return self._begin_anew(answer)
            case wire.Error() if not self._is_passing(answer):
                if self._ready is None:
                    raise RemoteError(answer.code, answer.message, answer.field)
                raise ConnectionLost(f"the connection was lost for too long: {answer.message}")
        return None

    def _is_passing(self, error: wire.Error) -> bool:
        """Whether trying again may help."""
        if error.code == ErrorCode.UNKNOWN_SESSION and self._replayable and not self._forgotten:
            self._forgotten = True
            return True
        return error.code in _FULL

    def _begin_anew(self, ready: wire.Ready) -> wire.Resumed:
        """The server had forgotten the stream: a new one takes over where all before is final."""
        base = self.backlog.restart(self._frame)
        samples = base // self._frame
        self._ready, self._forgotten = ready, False
        self._seq, self._acked = ready.seq, 0
        seconds = samples / self._start.sample_rate
        self._story.restart(Origin(seconds=seconds, samples=samples, bytes=base))
        return wire.Resumed(session=ready.session, samples=samples, bytes=base, controls=0)
