"""One stream as its client knows it, whatever connections and sessions it takes. No I/O.

What was said and is not held by the server, what has arrived, and how a new connection goes on: with the
same session, or, where the server has forgotten it, with a new one from the last closed segment on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..server import wire
from ..server.errors import ErrorCode
from .backlog import Backlog
from .errors import ConnectionLost, RemoteError
from .story import Origin, Story

__all__ = ["Session"]

_ACK_MESSAGES, _ACK_SECONDS = 32, 0.5  # how seldom the server is told what has arrived
_BYTES = {"s16le": 2, "f32le": 4, "mulaw": 1, "alaw": 1}  # containers cannot be begun in the middle
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
        self._frame = _BYTES.get(start.encoding, 0) * start.channels  # bytes; 0: no replay
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
