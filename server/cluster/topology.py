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

from ..http.admission import Admission
from ..http.auth import Account
from ..process_stats import ProcessStats
from ..protocol.codec import Codec
from ..protocol.messages import Resume

__all__ = ["SingleProcess", "new_id", "owner_of", "socket_path"]


def owner_of(stream_id: str, count: int) -> int | None:
    """Return which of ``count`` processes has this stream, if any has; None: it is no id of ours."""
    try:
        return int(stream_id[:2], 16) % count
    except ValueError:
        return None


def new_id(number: int, count: int) -> str:
    """Return a new stream's id, random but for its owner: 16 hexadecimal digits."""
    first = number + count * secrets.randbelow((255 - number) // count + 1)
    return f"{first:02x}{secrets.token_hex(7)}"


def socket_path(folder: str, number: int) -> str:
    """Where the other processes reach the one of this number."""
    return f"{folder}/{number}.sock"


class SingleProcess:
    """The only process of a daemon: its own streams and counts are all there are.

    ``ingress.IngressProcess`` is the other topology: one of several processes that serve one address.
    """

    number = 0
    count = 1

    def __init__(self) -> None:
        self._open = (0, 0)

    def new_id(self) -> str:
        return new_id(self.number, self.count)

    def owns(self, stream_id: str) -> bool:
        """Whether a stream that nobody has open, or an unknown one, would be this process's."""
        return owner_of(stream_id, self.count) in (self.number, None)

    def accounts(self, accounts: Sequence[Account]) -> list[Account]:
        """Return accounts that count for the whole daemon."""
        return list(accounts)

    def admission(self, most_load: float) -> Admission:
        """Return what decides on new streams, for the whole daemon."""
        return Admission(most_load)

    def deciding(self) -> AbstractContextManager[None]:
        """Hold it while deciding on a new stream: no other process decides meanwhile."""
        return contextlib.nullcontext()

    def publish(self, streams: int, connections: int) -> None:
        """Say what this process has open."""
        self._open = (streams, connections)

    @property
    def open(self) -> tuple[int, int]:
        """Streams and connections of the whole daemon, as last published."""
        return self._open

    async def collect(self, own: ProcessStats) -> ProcessStats:
        """Return the figures of the whole daemon, of which ``own`` are this process's."""
        return own

    def relayed(self, app: ASGIApp) -> ASGIApp:
        """Return ``app``, with requests for streams of other processes passed on to these."""
        return app

    async def relay_resume(
        self, websocket: WebSocket, codec: Codec, resume: Resume, account: Account | None
    ) -> bool:
        """Serve a resume of another process's stream until it ends; False: the stream is not one's."""
        return False
