"""Errors of the daemon itself, and the words in which errors are logged. Standard library only.

::

    ServerError
    ├── ConfigError       a flag or option that cannot be used
    ├── ProcessError      a process of the daemon cannot be started, or ends again and again
    ├── JournalError      the journal cannot be written or read
    ├── ListenError       the address cannot be listened on
    └── RemoteJobError    a job failed in an engine process
"""

from __future__ import annotations

import errno
import socket
import traceback

from .protocol.errors import ServerError

__all__ = [
    "ConfigError",
    "JournalError",
    "ListenError",
    "ProcessError",
    "RemoteJobError",
    "error_origin",
    "failure_name",
]


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
    """A job that failed in an engine process.

    Args:
        name: class name of the error that was raised there. Its text stays there: it may quote what was said.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"the engine process could not run the job ({self.name}); the daemon's log says where"
        )


def failure_name(error: BaseException) -> str:
    """Return the name under which ``error`` is logged: its class, or the class of the error of another process."""
    return error.name if isinstance(error, RemoteJobError) else type(error).__name__


def error_origin(error: Exception) -> str:
    """Return where ``error`` was raised, for the log. Its own text may quote what was said: leave it out."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return ",".join(f"{frame.name}:{frame.lineno}" for frame in frames)
