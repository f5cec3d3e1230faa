"""Errors between a client and the daemon, and the codes that name them on the wire. Standard library only.

::

    WhisperStreamError
    └── ServerError               the daemon's own: server/errors.py has the others
        └── ProtocolError         the peer broke the protocol; becomes an ``error`` message
            ├── UnreadableFrame   not a message at all
            ├── UnknownMessage    a message of an unknown type
            └── InvalidField      a known message with a field that cannot be used
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from ... import WhisperStreamError

__all__ = [
    "SERVE_HELP",
    "CloseCode",
    "ErrorCode",
    "InvalidField",
    "ProtocolError",
    "ServerError",
    "UnknownMessage",
    "UnreadableFrame",
    "WarningCode",
]

SERVE_HELP = "see `whisper-stream serve --help`"


class ErrorCode(StrEnum):
    """``code`` of an ``error`` message."""

    UNREADABLE_FRAME = "unreadable_frame"
    TEXT_FRAME = "text_frame"
    UNKNOWN_MESSAGE = "unknown_message"
    INVALID_FIELD = "invalid_field"
    AUDIO_BEFORE_START = "audio_before_start"
    NOT_STARTED = "not_started"
    ALREADY_STARTED = "already_started"
    AFTER_EOS = "after_eos"
    ODD_BYTES = "odd_bytes"
    BAD_AUDIO = "bad_audio"
    IDLE_TIMEOUT = "idle_timeout"
    TOO_MANY_STREAMS = "too_many_streams"
    OVERLOADED = "overloaded"
    LIMIT_REACHED = "limit_reached"
    UNKNOWN_SESSION = "unknown_session"
    TAKEN_OVER = "taken_over"
    JOURNAL_FAILED = "journal_failed"
    INTERNAL = "internal"


class WarningCode(StrEnum):
    """``code`` of a ``warning`` message sent by the server layer; streams may add their own."""

    ODD_BYTES = "odd_bytes"
    SHUTTING_DOWN = "shutting_down"
    JOURNAL_FULL = "journal_full"
    NEARLY_SILENT = "nearly_silent"
    DC_OFFSET = "dc_offset"
    NOISE = "noise"
    CLIPPING = "clipping"
    SAMPLE_RATE = "sample_rate"


class CloseCode(IntEnum):
    """Websocket close codes in use (RFC 6455 section 7.4.1 and its IANA registry)."""

    NORMAL = 1000
    UNSUPPORTED_DATA = 1003
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013


class ServerError(WhisperStreamError):
    """Base of the errors of this layer."""


class ProtocolError(ServerError):
    """The peer broke the protocol.

    Attributes:
        code: becomes ``error.code``.
        field: the offending field, if one is to blame.
    """

    def __init__(self, code: ErrorCode, message: str, *, field: str | None = None) -> None:
        super().__init__(code, message, field)
        self.code = code
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return self.message


class UnreadableFrame(ProtocolError):
    """A frame that holds no message."""

    def __init__(self, message: str, *, code: ErrorCode = ErrorCode.UNREADABLE_FRAME) -> None:
        super().__init__(code, message)


class UnknownMessage(ProtocolError):
    """A well-formed message of an unknown type."""

    def __init__(self, type_name: str, known: tuple[str, ...]) -> None:
        super().__init__(
            ErrorCode.UNKNOWN_MESSAGE,
            f"unknown message type {type_name!r}; known types are {', '.join(known)}",
            field="type",
        )
        self.type_name = type_name
        self.known = known


class InvalidField(ProtocolError):
    """A field that is missing or has a value that cannot be used."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(ErrorCode.INVALID_FIELD, message, field=field)
