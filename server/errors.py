"""What can go wrong in the daemon itself. Standard library only.

::

    ServerError
    ├── ConfigError       a flag or option that cannot be used
    ├── ProcessError      a process of the daemon cannot be started, or ends again and again
    ├── JournalError      the journal cannot be written or read
    ├── ListenError       the address cannot be listened on
    └── RemoteJobError    a job failed in the engine's process
"""

from __future__ import annotations

import errno
import socket

from .protocol.errors import ServerError

__all__ = [
    "ConfigError",
    "JournalError",
    "ListenError",
    "ProcessError",
    "RemoteJobError",
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
    """A job failed in the engine's process."""

    @classmethod
    def named(cls, name: str) -> RemoteJobError:
        """Return an error whose class bears the name of the one that was raised there."""
        kind: type[RemoteJobError] = type(name if name.isidentifier() else cls.__name__, (cls,), {})
        return kind("the engine's process could not run the job; the daemon's log says where")
