"""Position of a process in the daemon: the only one, or one of several that share the streams.

The number of the process that owns a stream is part of the stream's id, for any number of processes. Every
process can therefore tell whom to ask for a stream, and after a restart who restores it.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from contextlib import AbstractContextManager

from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from ..http.admission import AdmissionLog, LocalAdmissions
from ..http.auth import Account
from ..process_stats import ProcessStats
from ..protocol.codec import Codec
from ..protocol.messages import Resume

__all__ = ["SingleProcess", "new_id", "owner_of", "socket_path"]


def owner_of(stream_id: str, count: int) -> int | None:
    """Return which of ``count`` processes owns this stream, if any has it; None: it is not an id of ours."""
    try:
        return int(stream_id[:2], 16) % count
    except ValueError:
        return None


def new_id(number: int, count: int) -> str:
    """Return the id of a new stream: 16 hexadecimal digits, random except for its owner."""
    first = number + count * secrets.randbelow((255 - number) // count + 1)
    return f"{first:02x}{secrets.token_hex(7)}"


def socket_path(folder: str, number: int) -> str:
    """Return the path of the Unix socket on which process ``number`` serves the other processes."""
    return f"{folder}/{number}.sock"


class SingleProcess:
    """The only process of a daemon: its own streams and counts are all there are.

    ``ingress.IngressProcess`` is the other topology: one of several processes that serve one address.

    Attributes:
        number: of the process, from 0.
        count: processes that hold streams.
    """

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self.number = number
        self.count = count
        self._open = (0, 0)

    def new_id(self) -> str:
        """Return the id of a new stream that this process owns."""
        return new_id(self.number, self.count)

    def owns(self, stream_id: str) -> bool:
        """Return whether this process restores the stream of an earlier daemon."""
        return owner_of(stream_id, self.count) in (self.number, None)

    def accounts(self, accounts: Sequence[Account]) -> list[Account]:
        """Return ``accounts``, with usage that is counted for the whole daemon."""
        return list(accounts)

    def admission_log(self) -> AdmissionLog:
        """Return the log of streams that the whole daemon has admitted."""
        return LocalAdmissions()

    def deciding(self) -> AbstractContextManager[None]:
        """Return a lock to hold while a new stream is decided on: no other process decides meanwhile."""
        return contextlib.nullcontext()

    def publish(self, streams: int, connections: int) -> None:
        """Tell the other processes what this one has open."""
        self._open = (streams, connections)

    @property
    def open(self) -> tuple[int, int]:
        """Streams and connections of the whole daemon, as last published."""
        return self._open

    async def collect(self, own: ProcessStats) -> ProcessStats:
        """Return the statistics of the whole daemon; ``own`` are those of this process."""
        return own

    def relay(self, app: ASGIApp) -> ASGIApp:
        """Return ``app``, with requests for streams of other processes passed on to these."""
        return app

    async def relay_resume(
        self, websocket: WebSocket, codec: Codec, resume: Resume, account: Account | None
    ) -> bool:
        """Serve the resume of another process's stream until it ends; False: the stream belongs here."""
        return False
