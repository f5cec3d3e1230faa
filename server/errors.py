"""What can go wrong between a client and the daemon. Standard library only.

::

    WhisperStreamError
    └── ServerError
        ├── ConfigError           a flag or option that cannot be used
        ├── JournalError          the journal cannot be written or read
        ├── ListenError           the address cannot be listened on
        ├── RemoteJobError        a job failed in the engine's process
        └── ProtocolError         the peer broke the protocol; becomes an ``error`` message
            ├── UnreadableFrame   not a message at all
            ├── UnknownMessage    a message of a type that nobody knows
            └── InvalidField      a known message with a field that cannot be used
"""

from __future__ import annotations

import errno
import socket
from enum import IntEnum, StrEnum

from .. import WhisperStreamError

__all__ = [
    "SERVE_HELP",
    "CloseCode",
    "ConfigError",
    "ErrorCode",
    "InvalidField",
    "JournalError",
    "ListenError",
    "ProtocolError",
    "RemoteJobError",
    "ServerError",
    "UnknownMessage",
    "UnreadableFrame",
    "WarningCode",
]


SERVE_HELP = "whisper-stream serve --help lists the flags"


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


class ConfigError(ServerError):
    """A flag or option that cannot be used. The text names it and what it takes."""

    exit_code = 2  # of every command that takes the daemon's flags


class ProcessError(ServerError):
    """A process of the daemon has ended, and starting it again does not help."""


class JournalError(ServerError):
    """The journal cannot be written or read, or does not hold what it should."""


class ListenError(ServerError):
    """The daemon cannot listen on its address."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(host, port, error)
        self.host = host
        self.port = port
        self.error = error

    def __str__(self) -> str:
        reason = self.error.strerror or str(self.error)
        return f"cannot listen on {self.host} port {self.port} ({reason}); {self._advice}"

    @property
    def _advice(self) -> str:
        if isinstance(self.error, socket.gaierror):
            return (
                "--host must be an address or a name of this machine, such as 127.0.0.1 or 0.0.0.0"
            )
        match self.error.errno:
            case errno.EADDRINUSE:
                return "something listens there already: end it, or choose another --port (0: a free one)"
            case errno.EADDRNOTAVAIL:
                return "--host must be an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all"
            case errno.EACCES | errno.EPERM:
                return "this user may not; choose a --port above 1023"
            case _:
                return "choose another --port (0: a free one), or another --host"


class RemoteJobError(ServerError):
    """A job failed in the engine's process."""

    @classmethod
    def named(cls, name: str) -> RemoteJobError:
        """Return an error whose class bears the name of the one that was raised there."""
        kind: type[RemoteJobError] = type(name if name.isidentifier() else cls.__name__, (cls,), {})
        return kind("the engine's process could not run the job; the daemon's log says where")


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
