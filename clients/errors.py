"""Errors of the clients. The text of each is one line for the user: what was wrong and what to do.

::

    WhisperStreamError
    └── ClientError             exit code 1
        ├── UsageError          exit code 2: an option or its value
        ├── SourceError         exit code 2: the audio file
        ├── OutputError         exit code 2: the transcript's file
        ├── NotInstalledError   the engine is not part of this installation
        ├── DaemonError         the embedded daemon did not start
        └── StreamError
            ├── ConnectError    no stream was opened
            ├── ConnectionLost  the stream ended before the server had finished it
            └── RemoteError     the server reported an error
"""

from __future__ import annotations

from .. import WhisperStreamError

__all__ = [
    "ClientError",
    "ConnectError",
    "ConnectionLost",
    "DaemonError",
    "NotInstalledError",
    "OutputError",
    "RemoteError",
    "SourceError",
    "StreamError",
    "UsageError",
]


class ClientError(WhisperStreamError):
    """Base of the clients' errors. ``exit_code`` is what a command returns for it."""

    exit_code: int = 1


class UsageError(ClientError):
    """Raised when an option, or its value, cannot be used."""

    exit_code = 2


class SourceError(ClientError):
    """Raised when audio cannot be read from a file, a pipe, an address or a microphone."""

    exit_code = 2


class OutputError(ClientError):
    """Raised when a file cannot be written."""

    exit_code = 2


class NotInstalledError(ClientError):
    """Raised when a command needs packages that are not installed; the text has pip's command."""


class DaemonError(ClientError):
    """Raised when the embedded daemon ended, or took too long, before it was listening."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class StreamError(ClientError):
    """Base of what can go wrong with a stream."""


class ConnectError(StreamError):
    """Raised when no stream was opened.

    Attributes:
        url: the address.
        reason: why, without the address.
        status: the HTTP status of the answer, if there was one.
    """

    def __init__(self, url: str, reason: str, status: int | None = None) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason
        self.status = status


class ConnectionLost(StreamError):
    """Raised when the connection ended before ``done``.

    Attributes:
        code: the websocket's close code, if the server sent one.
        reason: the reason beside it.
    """

    def __init__(self, message: str, code: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


class RemoteError(StreamError):
    """Raised for a fatal ``error`` message of the server.

    Attributes:
        code: what went wrong, one of the protocol's names.
        field: the field at fault, if one is.
    """

    def __init__(self, code: str, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.field = field
