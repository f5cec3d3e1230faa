"""Whether the model can do what a client asks of it.

What a connection's protocol asks its shell to do, in the order given.

One client's side of the native protocol, as a state machine without I/O.

Frames go in, actions come out; the shell carries the actions out in order. Nothing here reads a
clock or a socket. The client's mistakes become ``error`` replies; nothing is raised for them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

import msgspec
from msgspec import UnsetType

from ...model.media.pcm import frame_bytes
from ...model.whisper.languages import LANGUAGES
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

__all__ = [
    "Acknowledge",
    "Action",
    "CloseConnection",
    "ConfigureStream",
    "FinishStream",
    "FlushStream",
    "OpenStream",
    "ProtocolState",
    "PushAudio",
    "Reply",
    "ResumeStream",
    "ServerProtocol",
    "checked",
]


def checked(start: Start, languages: tuple[str, ...]) -> Start:
    """Return ``start`` if the model can do what it asks; raises InvalidField.

    Args:
        languages: codes that the model knows; empty for one that knows English only.
    """
    if start.language is not None and start.languages and start.language not in start.languages:
        raise InvalidField(
            "languages",
            f"languages must have {start.language[:32]!r} in it, which language asks for; "
            "or leave one of the two out",
        )
    if languages:
        asked = [("language", start.language)] if start.language is not None else []
        for field, code in [*asked, *(("languages", code) for code in start.languages)]:
            if code not in languages:
                near = ", ".join(difflib.get_close_matches(code, languages, n=3)) or "en, de, fr"
                raise InvalidField(
                    field,
                    f"{field} {code[:32]!r} is not an ISO 639-1 code that this model knows "
                    f"(such as {near}); leave it out to have it detected",
                )
        return start
    if start.language not in (None, "en"):
        raise InvalidField(
            "language",
            f"language {start.language[:32]!r}: this model knows English only; leave it out, or use "
            "a multilingual model",
        )
    for code in start.languages:
        if code not in LANGUAGES:
            raise InvalidField(
                "languages", f"languages has {code[:32]!r}, which is no language code of Whisper"
            )
    if start.languages and "en" not in start.languages:
        raise InvalidField(
            "languages",
            "languages must have en in it, or be left out: this model knows English only",
        )
    if start.task != "transcribe":
        raise InvalidField(
            "task",
            "task must be transcribe: this model knows English only; use a multilingual model",
        )
    return start


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Open the stream that ``start`` asks for, and answer ``ready``."""

    start: Start


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStream:
    """Look up the stream, then call ``resumed`` or ``fail``."""

    resume: Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The client has every message up to ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAudio:
    """Feed PCM bytes. They may end inside a sample: the next ones go on from there."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushStream:
    """Commit everything received, and answer ``flushed``."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureStream:
    """Change options from here on, and answer ``configured``."""

    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishStream:
    """No more audio: commit the rest, answer ``done``, close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Send this message; ``seq`` is set when it is sent."""

    message: ServerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close once everything before is sent."""

    code: CloseCode
    reason: str


Action = (
    OpenStream
    | ResumeStream
    | Acknowledge
    | PushAudio
    | FlushStream
    | ConfigureStream
    | FinishStream
    | Reply
    | CloseConnection
)


class ProtocolState(Enum):
    """Where a connection stands."""

    EXPECT_START = auto()
    STREAMING = auto()
    DRAINING = auto()  # no more audio; the rest of the text is on its way
    CLOSED = auto()  # further frames are ignored


class ServerProtocol:
    """What one connection may do next, and what its frames mean.

    Args:
        codec: the negotiated form of the messages.
        languages: codes that ``start.language`` may name; empty for an English-only model.
    """

    def __init__(self, codec: Codec, languages: tuple[str, ...]) -> None:
        self.state = ProtocolState.EXPECT_START
        self._codec = codec
        self._languages = languages
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

    def receive_text(self, text: str) -> list[Action]:
        """Take one text frame; return what to do about it, in order."""
        return self._receive(text)

    def receive_binary(self, data: bytes) -> list[Action]:
        """Take one binary frame; return what to do about it, in order."""
        return self._receive(data)

    def stop(self) -> list[Action]:
        """End the stream because the daemon stops: as ``eos`` would, after a warning."""
        text = "the daemon is stopping; what it has received is being completed"
        code = WarningCode.SHUTTING_DOWN
        warning = Reply(message=Warning(code=code, message=text))
        if self.state is ProtocolState.STREAMING:
            self._ended_here = True
            return [warning, *self._on_eos()]
        if self.state is ProtocolState.EXPECT_START:
            self.state = ProtocolState.CLOSED
            return [warning, CloseConnection(code=CloseCode.SERVICE_RESTART, reason=code)]
        return []

    def resumed(self, start: Start, received: int, *, ended: bool) -> None:
        """A stream opened by ``start`` goes on here.

        Args:
            received: bytes of audio so far.
            ended: no more audio is expected.
        """
        self._frame_bytes = frame_bytes(start.encoding, start.channels) or 1
        self._start = start
        self._dangling = received % self._frame_bytes
        self.state = ProtocolState.DRAINING if ended else ProtocolState.STREAMING

    def ended(self) -> None:
        """The stream takes no more audio, for a reason that the client was told."""
        if self.state is ProtocolState.STREAMING:
            self.state = ProtocolState.DRAINING
            self._ended_here = True

    def suspend(self) -> list[Action]:
        """End the connection because the daemon stops, the stream to go on with the next daemon."""
        if self.state is ProtocolState.CLOSED:
            return []
        self.state = ProtocolState.CLOSED
        text = "the daemon is stopping; the stream is kept and can be resumed"
        code = WarningCode.SHUTTING_DOWN
        return [
            Reply(message=Warning(code=code, message=text)),
            CloseConnection(code=CloseCode.SERVICE_RESTART, reason=code),
        ]

    def fail(self, code: ErrorCode, message: str, close: CloseCode) -> list[Action]:
        """End the connection with a fatal error."""
        if self.state is ProtocolState.CLOSED:
            return []
        return self._fatal(ProtocolError(code, message), close)

    def _receive(self, frame: Frame) -> list[Action]:
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
        return self._dispatch(message)

    def _dispatch(self, message: ClientMessage) -> list[Action]:
        if isinstance(message, Audio) and self.state is ProtocolState.STREAMING:
            return self._on_audio(message.data)  # nearly all there is
        if isinstance(message, Ping):
            return [Reply(message=Pong(id=message.id))]
        if isinstance(message, Seen):
            return [Acknowledge(seq=message.seq)]
        handlers: dict[ProtocolState, Callable[[ClientMessage], list[Action]]] = {
            ProtocolState.EXPECT_START: self._before_start,
            ProtocolState.STREAMING: self._while_streaming,
            ProtocolState.DRAINING: self._after_eos,
        }
        return handlers[self.state](message)

    def _before_start(self, message: ClientMessage) -> list[Action]:
        if isinstance(message, Start):
            return self._on_start(message)
        if isinstance(message, Resume):
            return [ResumeStream(resume=message)]
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

    def _while_streaming(self, message: ClientMessage) -> list[Action]:
        if isinstance(message, Audio):
            return self._on_audio(message.data)
        if isinstance(message, Flush):
            return [*self._leftover("flush"), FlushStream(id=message.id)]
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

    def _after_eos(self, message: ClientMessage) -> list[Action]:
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

    def _on_start(self, start: Start) -> list[Action]:
        try:
            start = checked(start, self._languages)
        except InvalidField as error:
            return self._fatal(error, CloseCode.POLICY_VIOLATION)
        self._frame_bytes = frame_bytes(start.encoding, start.channels) or 1
        self._start = start
        self.state = ProtocolState.STREAMING
        return [OpenStream(start=start)]

    def _on_audio(self, data: bytes) -> list[Action]:
        self._dangling = (self._dangling + len(data)) % self._frame_bytes
        actions: list[Action] = [PushAudio(data=data)]
        if self._dangling and not self._warned_odd_bytes:
            self._warned_odd_bytes = True
            text = (
                f"a binary frame ended inside a sample of {self._frame_bytes} bytes; "
                "the next frame is taken to go on from there"
            )
            actions.append(Reply(message=Warning(code=WarningCode.ODD_BYTES, message=text)))
        return actions

    def _on_config(self, config: Config) -> list[Action]:
        asked = self._start
        if not isinstance(config.language, UnsetType):
            asked = msgspec.structs.replace(asked, language=config.language)
        if not isinstance(config.languages, UnsetType):
            asked = msgspec.structs.replace(asked, languages=config.languages)
        try:
            if asked is not self._start:
                checked(asked, self._languages)
        except InvalidField as error:
            return [_complaint(error), ConfigureStream(config=Config())]
        self._start = asked
        return [ConfigureStream(config=config)]

    def _on_eos(self) -> list[Action]:
        self.state = ProtocolState.DRAINING
        return [*self._leftover("eos"), FinishStream()]

    def _leftover(self, where: str) -> list[Action]:
        if not self._dangling:
            return []
        error = ProtocolError(
            ErrorCode.ODD_BYTES,
            f"at {where}, {self._dangling} of the {self._frame_bytes} bytes of a sample were left "
            "over; check that encoding and channels describe the audio",
        )
        return [_complaint(error)]

    def _fatal(self, error: ProtocolError, close: CloseCode) -> list[Action]:
        self.state = ProtocolState.CLOSED
        reply = Error(code=error.code, message=error.message, field=error.field, fatal=True)
        return [Reply(message=reply), CloseConnection(code=close, reason=error.code)]


def _complaint(error: ProtocolError) -> Reply:
    """An error after which the stream goes on."""
    return Reply(
        message=Error(code=error.code, message=error.message, field=error.field, fatal=False)
    )


def _name(message: ClientMessage) -> str:
    return str(type(message).__struct_config__.tag)
