"""One client's side of the native protocol, as a state machine without I/O.

Frames go in; commands for the stream come out, and what else is to be done: the shell carries all of it
out in order. Nothing here reads a clock or a socket. The client's mistakes become ``error`` replies;
nothing is raised for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
from msgspec import UNSET, UnsetType

from ...model.media.pcm import frame_bytes
from ...streamer import commands
from .codec import Codec, Frame
from .errors import CloseCode, ErrorCode, InvalidField, ProtocolError, UnreadableFrame, WarningCode
from .messages import (
    Audio,
    ClientMessage,
    Config,
    Eos,
    Error,
    Flush,
    Ping,
    Pong,
    Resume,
    Seen,
    ServerMessage,
    Start,
    Warning,
)
from .validation import validate_start

__all__ = ["Close", "Outcome", "ProtocolState", "Reply", "ServerProtocol"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Send this message; ``seq`` is set when it is sent."""

    message: ServerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """Close the connection once everything before is sent."""

    code: CloseCode
    reason: str


# A command is for the stream. Start: open it. Resume: look it up, then call ``resume`` or ``fail``. Seen: the
# client has all messages up to there.
Outcome = commands.ClientCommand | Start | Resume | Seen | Reply | Close


class ProtocolState(Enum):
    """The phases of a connection."""

    EXPECT_START = auto()
    STREAMING = auto()
    DRAINING = auto()  # no more audio; the rest of the text is on its way
    CLOSED = auto()  # further frames are ignored


class ServerProtocol:
    """The state of one connection: what its client may send next, and the meaning of its frames.

    Args:
        codec: the negotiated form of the messages.
        languages: codes that ``start.language`` may name; empty for an English-only model.
        endpoint_silence: seconds; what ``config`` goes back to with null.
    """

    def __init__(self, codec: Codec, languages: tuple[str, ...], endpoint_silence: float) -> None:
        self.state = ProtocolState.EXPECT_START
        self._codec = codec
        self._languages = languages
        self._endpoint_silence = endpoint_silence
        # What start asked for, with what config has changed of its languages.
        self._start = Start()
        # Bytes of one sample of all channels, 1 of a container: no piece of it is odd. Set by start.
        self._frame_bytes = 1
        # Bytes received of a sample that is not complete yet.
        self._dangling = 0
        # Notices given once in a stream.
        self._warned_odd_bytes = False
        self._told_after_eos = False
        # The end came from stop(), not from the client, which may not know yet.
        self._ended_here = False

    def receive(self, frame: Frame) -> list[Outcome]:
        """Take one frame; return what to do about it, in order."""
        if self.state is ProtocolState.CLOSED:
            return []
        try:
            message = self._codec.decode_client(frame)
        except UnreadableFrame as error:
            return self._fatal(error, CloseCode.UNSUPPORTED_DATA)
        except ProtocolError as error:
            if self.state is ProtocolState.EXPECT_START and isinstance(error, InvalidField):
                return self._fatal(error, CloseCode.POLICY_VIOLATION)
            return [_complaint(error)]
        if isinstance(message, Audio) and self.state is ProtocolState.STREAMING:
            return self._on_audio(message.data)  # nearly all there is
        if isinstance(message, Ping):
            return [Reply(message=Pong(id=message.id))]
        if isinstance(message, Seen):
            return [message]
        handlers: dict[ProtocolState, Callable[[ClientMessage], list[Outcome]]] = {
            ProtocolState.EXPECT_START: self._before_start,
            ProtocolState.STREAMING: self._while_streaming,
            ProtocolState.DRAINING: self._after_eos,
        }
        return handlers[self.state](message)

    def stop(self) -> list[Outcome]:
        """End the stream because the daemon stops: as ``eos`` would, after a warning."""
        text = "the daemon is stopping; what it has received is being completed"
        code = WarningCode.SHUTTING_DOWN
        warning = Reply(message=Warning(code=code, message=text))
        if self.state is ProtocolState.STREAMING:
            self._ended_here = True
            return [warning, *self._on_eos()]
        if self.state is ProtocolState.EXPECT_START:
            self.state = ProtocolState.CLOSED
            return [warning, Close(code=CloseCode.SERVICE_RESTART, reason=code)]
        return []

    def resume(self, start: Start, received: int, *, ended: bool) -> None:
        """Go on with a stream that was opened by ``start``.

        Args:
            received: bytes of audio so far.
            ended: no more audio is expected.
        """
        self._frame_bytes = frame_bytes(start.encoding, start.channels) or 1
        self._start = start
        self._dangling = received % self._frame_bytes
        self.state = ProtocolState.DRAINING if ended else ProtocolState.STREAMING

    def end_input(self) -> None:
        """Take no more audio, for a reason that the client was told."""
        if self.state is ProtocolState.STREAMING:
            self.state = ProtocolState.DRAINING
            self._ended_here = True

    def suspend(self) -> list[Outcome]:
        """End the connection because the daemon stops, the stream to go on with the next daemon."""
        if self.state is ProtocolState.CLOSED:
            return []
        self.state = ProtocolState.CLOSED
        text = "the daemon is stopping; the stream is kept and can be resumed"
        code = WarningCode.SHUTTING_DOWN
        return [
            Reply(message=Warning(code=code, message=text)),
            Close(code=CloseCode.SERVICE_RESTART, reason=code),
        ]

    def fail(self, code: ErrorCode, message: str, close: CloseCode) -> list[Outcome]:
        """End the connection with a fatal error."""
        if self.state is ProtocolState.CLOSED:
            return []
        return self._fatal(ProtocolError(code, message), close)

    def _before_start(self, message: ClientMessage) -> list[Outcome]:
        if isinstance(message, Start):
            return self._on_start(message)
        if isinstance(message, Resume):
            return [message]
        if isinstance(message, Audio):
            error = ProtocolError(
                ErrorCode.AUDIO_BEFORE_START,
                "audio came before start; the first message must be start",
            )
        else:
            error = ProtocolError(
                ErrorCode.NOT_STARTED,
                f"{_name(message)} came before start; the first message must be start",
            )
        return self._fatal(error, CloseCode.POLICY_VIOLATION)

    def _while_streaming(self, message: ClientMessage) -> list[Outcome]:
        if isinstance(message, Flush):
            return [*self._leftover("flush"), commands.Flush(id=message.id)]
        if isinstance(message, Config):
            return self._on_config(message)
        if isinstance(message, Eos):
            return self._on_eos()
        return [
            _complaint(
                ProtocolError(
                    ErrorCode.ALREADY_STARTED,
                    f"a second {_name(message)}; open another connection for another stream",
                )
            )
        ]

    def _after_eos(self, message: ClientMessage) -> list[Outcome]:
        if self._ended_here:
            return []
        # One audio frame too many is usually many: say it once.
        if isinstance(message, Audio):
            if self._told_after_eos:
                return []
            self._told_after_eos = True
        error = ProtocolError(
            ErrorCode.AFTER_EOS,
            f"{_name(message)} came after the end of the stream and is ignored",
        )
        return [_complaint(error)]

    def _on_start(self, start: Start) -> list[Outcome]:
        try:
            start = validate_start(start, self._languages)
        except InvalidField as error:
            return self._fatal(error, CloseCode.POLICY_VIOLATION)
        self._frame_bytes = frame_bytes(start.encoding, start.channels) or 1
        self._start = start
        self.state = ProtocolState.STREAMING
        return [start]

    def _on_audio(self, data: bytes) -> list[Outcome]:
        self._dangling = (self._dangling + len(data)) % self._frame_bytes
        outcomes: list[Outcome] = [commands.Audio(data=data)]
        if self._dangling and not self._warned_odd_bytes:
            self._warned_odd_bytes = True
            text = (
                f"a binary frame ended inside a sample of {self._frame_bytes} bytes; "
                "the next frame is taken to go on from there"
            )
            outcomes.append(Reply(message=Warning(code=WarningCode.ODD_BYTES, message=text)))
        return outcomes

    def _on_config(self, config: Config) -> list[Outcome]:
        asked = self._start
        if not isinstance(config.language, UnsetType):
            asked = msgspec.structs.replace(asked, language=config.language)
        if not isinstance(config.languages, UnsetType):
            asked = msgspec.structs.replace(asked, languages=config.languages)
        try:
            if asked is not self._start:
                validate_start(asked, self._languages)
        except InvalidField as error:
            return [_complaint(error), commands.Configure()]
        self._start = asked
        return [self._configure(config)]

    def _configure(self, config: Config) -> commands.Configure:
        silence = config.endpoint_silence
        return commands.Configure(
            # a model of English alone has nothing to choose
            language=config.language if self._languages else UNSET,
            languages=config.languages,
            prompt=config.prompt,
            hotwords=config.hotwords,
            endpoint_silence=self._endpoint_silence if silence is None else silence,
        )

    def _on_eos(self) -> list[Outcome]:
        self.state = ProtocolState.DRAINING
        return [*self._leftover("eos"), commands.EndOfStream()]

    def _leftover(self, where: str) -> list[Outcome]:
        if not self._dangling:
            return []
        error = ProtocolError(
            ErrorCode.ODD_BYTES,
            f"at {where}, {self._dangling} of the {self._frame_bytes} bytes of a sample were left "
            "over; check that encoding and channels describe the audio",
        )
        return [_complaint(error)]

    def _fatal(self, error: ProtocolError, close: CloseCode) -> list[Outcome]:
        self.state = ProtocolState.CLOSED
        reply = Error(code=error.code, message=error.message, field=error.field, fatal=True)
        return [Reply(message=reply), Close(code=close, reason=error.code)]


def _complaint(error: ProtocolError) -> Reply:
    """An error after which the stream goes on."""
    return Reply(
        message=Error(code=error.code, message=error.message, field=error.field, fatal=False)
    )


def _name(message: ClientMessage) -> str:
    return str(type(message).__struct_config__.tag)
