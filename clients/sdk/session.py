"""One stream as its client knows it, over any number of connections and sessions. No I/O.

It keeps what the server does not hold yet, counts what has arrived, and says how a new connection goes on:
with the same session, or, where the server has forgotten it, with a new one from the last closed segment on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...model.media.pcm import frame_bytes
from ...server.protocol import messages as wire
from ...server.protocol.errors import ErrorCode
from ..errors import ConnectionLost, RemoteError
from .backlog import Backlog
from .session_merge import Origin, SessionMerger

__all__ = ["ClientSession"]

_ACK_MESSAGES, _ACK_SECONDS = 32, 0.5  # how seldom the server is told what has arrived
_REPLAY_SECONDS = 60  # of audio kept at most that the server holds, in case it forgets the stream
_FULL = (ErrorCode.TOO_MANY_STREAMS, ErrorCode.OVERLOADED, ErrorCode.LIMIT_REACHED)


class ClientSession:
    """The state of the stream that ``start`` opens.

    Attributes:
        backlog: what the client has sent, until the server holds it.
    """

    def __init__(self, start: wire.Start) -> None:
        self._start = start
        # bytes; 0: no replay, as containers cannot be begun in the middle
        self._frame = frame_bytes(start.encoding, start.channels) or 0
        second = start.sample_rate * self._frame
        self.backlog = Backlog(_REPLAY_SECONDS * second if second else None)
        self._merger = SessionMerger()
        self._ready: wire.Ready | None = None
        self._ending = False  # eos was added
        self._forgotten = False  # the server does not know the session any more
        self._seq = 0  # the highest received
        self._acked = 0  # the highest that the server was told of
        self._acked_at = 0.0

    @property
    def opened(self) -> bool:
        """True once the server has sent ``ready``."""
        return self._ready is not None

    @property
    def resumable(self) -> bool:
        """True if the server keeps the stream for a new connection."""
        return self._ready is not None and self._ready.resume_seconds > 0

    @property
    def _replayable(self) -> bool:
        return self.resumable and self.backlog.replayable

    def add(self, message: wire.ClientMessage) -> None:
        """Add a message to send, which is kept until the server holds it."""
        self._ending = self._ending or isinstance(message, wire.Eos)
        self.backlog.add(message)

    def receive(self, message: wire.ServerMessage) -> None:
        """Take in a message that has arrived on the present connection."""
        self._seq = max(self._seq, message.seq)
        match message:
            case wire.Ready():
                self._ready = message
                if not self.resumable:
                    self.backlog.keep_nothing()
            case wire.Ack():
                self.backlog.acknowledge(message.bytes, message.controls)

    def merge(self, message: wire.ServerMessage) -> Iterator[wire.ServerMessage]:
        """Yield a received message as one of the whole stream: renumbered, or nothing for what is known."""
        for event in self._merger.merge(message):
            match event:
                case wire.Segment() if self._frame:
                    self.backlog.release(round(event.end * self._start.sample_rate) * self._frame)
                case wire.Flushed():
                    self.backlog.settle_flush(event.id)
            yield event

    def stops_early(self, message: wire.ServerMessage) -> bool:
        """Return whether the server ends a stream that its client goes on with."""
        return isinstance(message, wire.Done) and not self._ending and self._replayable

    def acknowledgement(self, now: float) -> wire.Seen | None:
        """Return the acknowledgement to send, or None while none is due.

        Args:
            now: seconds of a clock that does not go back.
        """
        many = self._seq - self._acked >= _ACK_MESSAGES
        due = self.resumable and (many or now - self._acked_at >= _ACK_SECONDS)
        if not due or self._seq <= self._acked:
            return None
        self._acked, self._acked_at = self._seq, now
        return wire.Seen(seq=self._seq)

    def greeting(self) -> wire.ClientMessage:
        """Return the first message on a new connection: ``start``, or ``resume``."""
        if self._ready is None or self._forgotten:
            return self.backlog.apply_configs(self._start)
        session, token = self._ready.session, self._ready.token
        return wire.Resume(session=session, token=token, seq=self._seq)

    def accept(self, answer: wire.ServerMessage) -> wire.ServerMessage | None:
        """Go on with a new connection, whose server gave ``answer`` to the greeting.

        Returns:
            The message for the user of the stream; None if this connection is of no use, but
            another attempt may help.

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
                self.receive(answer)
                return answer
            case wire.Ready():
                return self._begin_anew(answer)
            case wire.Error() if not self._is_passing(answer):
                if self._ready is None:
                    raise RemoteError(answer.code, answer.message, answer.field)
                raise ConnectionLost(f"the connection was lost for too long: {answer.message}")
        return None

    def _is_passing(self, error: wire.Error) -> bool:
        """Return whether another attempt may help."""
        if error.code == ErrorCode.UNKNOWN_SESSION and self._replayable and not self._forgotten:
            self._forgotten = True
            return True
        return error.code in _FULL

    def _begin_anew(self, ready: wire.Ready) -> wire.Resumed:
        """Go on with a new session, as the server forgot the old one, from where all before is final."""
        base = self.backlog.restart(self._frame)
        samples = base // self._frame
        self._ready, self._forgotten = ready, False
        self._seq, self._acked = ready.seq, 0
        seconds = samples / self._start.sample_rate
        self._merger.restart(Origin(seconds=seconds, samples=samples, bytes=base))
        return wire.Resumed(session=ready.session, samples=samples, bytes=base, controls=0)
