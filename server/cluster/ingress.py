"""One ingress process: it holds sockets and streams, and its engine is in the parent process. No torch.

Started by ``supervisor.py``. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from ..daemon.listener import DaemonServer, reload, uvicorn_config
from ..daemon.process import freeze_gc
from ..daemon.tls import server_context
from ..http.admission import AdmissionLog
from ..http.app import Hub, create_app
from ..http.auth import Account
from ..process_stats import ProcessStats
from ..protocol.codec import Codec
from ..protocol.messages import Resume
from .child import run_child
from .ipc import Channel, StartEngine, StartIngress
from .remote_engine import RemoteEngine
from .routing import Patience, Relay, relay_resume
from .shared_audio import SharedAudioSlots
from .shared_counters import SharedCounters, SharedKeyUsage
from .topology import SingleProcess, owner_of, socket_path

__all__ = ["IngressProcess", "main"]

_REPORT_SECONDS = (
    2.0  # between two reports without a request: all that is lost if the process is killed
)
_PUBLISH_SECONDS = 0.25

logger = logging.getLogger(f"{__package__}.ingress")  # it is run as __main__


class IngressProcess(SingleProcess):
    """One of several processes that serve one address, and share counts in memory.

    Args:
        start: says which of them it is.
        counters: shared by all of them.
        engine: asks the parent for the statistics of all.

    Attributes:
        patience: how long requests wait for another process.
    """

    def __init__(self, start: StartIngress, counters: SharedCounters, engine: RemoteEngine) -> None:
        super().__init__(start.number, start.count)
        self.patience = Patience()
        self._counters = counters
        self._engine = engine
        self._sockets = tuple(socket_path(start.folder, each) for each in range(start.count))

    def accounts(self, accounts: Sequence[Account]) -> list[Account]:
        """Return ``accounts``, with usage that is counted in shared memory."""
        return [
            replace(account, usage=SharedKeyUsage(self._counters, account.digest))
            for account in accounts
        ]

    def admission_log(self) -> AdmissionLog:
        """Return the log of admissions in shared memory."""
        return self._counters

    def deciding(self) -> AbstractContextManager[None]:
        """Return the lock of the shared memory."""
        return self._counters.lock()

    def publish(self, streams: int, connections: int) -> None:
        """Write into shared memory what this process has open."""
        self._counters.publish(streams, connections)

    @property
    def open(self) -> tuple[int, int]:
        """Streams and connections of all processes."""
        return self._counters.streams, self._counters.connections

    async def collect(self, own: ProcessStats) -> ProcessStats:
        """Return the sum over all processes, or ``own`` if the parent does not answer."""
        return await self._engine.collect() or own

    def relay(self, app: ASGIApp) -> ASGIApp:
        """Return ``app`` behind the relay to the other processes."""
        return Relay(app, self._owner_socket, self._sockets, self.patience)

    async def relay_resume(
        self, websocket: WebSocket, codec: Codec, resume: Resume, account: Account | None
    ) -> bool:
        """Serve the resume of another process's stream until it ends; False: the stream belongs here."""
        owner = self._owner_socket(resume.session)
        if owner is None:
            return False
        await relay_resume(websocket, codec, resume, account, owner, self.patience)
        return True

    def _owner_socket(self, stream_id: str) -> str | None:
        owner = owner_of(stream_id, self.count)
        return None if owner in (None, self.number) else self._sockets[owner]


class _IngressServer(DaemonServer):
    """Serves clients, and on a Unix socket the requests that other processes pass on."""

    def __init__(
        self,
        hub: Hub,
        engine: RemoteEngine,
        start: StartIngress,
        private: socket.socket,
        patience: Patience,
    ) -> None:
        self._tls = server_context(start.certificate, start.key) if start.certificate else None
        super().__init__(hub, start.config, self._ready, self._tls)
        self._start = start
        self._hub = hub
        self._engine = engine
        self._socket = private
        self._patience = patience
        self._private = uvicorn.Server(uvicorn_config(create_app(hub, private=True), start.config))
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.start(self._hub.stats)
        self._private.config.load()
        self._private.lifespan = self._private.config.lifespan_class(self._private.config)
        # First the clients' socket, which recovers streams: a request before that would find none.
        await super().startup(sockets)
        await self._private.startup([self._socket])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._patience.stop()
        await super().shutdown(sockets)
        await self._private.shutdown([self._socket])
        for task in self._tasks:
            task.cancel()
        self._engine.report_stats()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully on every signal: systemd signals all processes, and then the parent signals this one.

        No client is let in from this moment on: those that a sibling has sent away would come here.
        """
        self._hub.draining = True
        self.request_exit()

    def reload(self) -> None:
        reload(self._hub, self._tls, self._start.certificate, self._start.key)

    def _ready(self) -> None:
        freeze_gc()
        self._tasks = [
            asyncio.create_task(self._repeat(_PUBLISH_SECONDS, self._hub.publish)),
            asyncio.create_task(self._repeat(_REPORT_SECONDS, self._engine.report_stats)),
        ]
        self._engine.report_ready()

    async def _repeat(self, seconds: float, action: Callable[[], None]) -> None:
        while True:
            action()
            await asyncio.sleep(seconds)


def main(argv: Sequence[str], engine_type: type[RemoteEngine] = RemoteEngine) -> int:
    """Run one ingress process; return its exit code.

    Args:
        argv: descriptors, from the parent.
        engine_type: makes sessions, and sends their jobs.
    """

    def serve(
        channel: Channel,
        audio_slots: SharedAudioSlots,
        start: StartEngine | StartIngress,
        descriptors: list[int],
    ) -> None:
        assert isinstance(start, StartIngress)
        public, private, counters = descriptors
        engine = engine_type(channel, audio_slots, start, _exit_with_parent)
        topology = IngressProcess(start, SharedCounters(counters, start.number), engine)
        asyncio.run(_serve(start, engine, topology, public, private))
        engine.close()

    return run_child(argv, "ingress", serve)


async def _serve(
    start: StartIngress, engine: RemoteEngine, topology: IngressProcess, public: int, private: int
) -> None:
    hub = Hub(engine, start.config, topology)
    server = _IngressServer(hub, engine, start, socket.socket(fileno=private), topology.patience)
    with contextlib.suppress(NotImplementedError):  # where there is no SIGHUP
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
    await server.serve(sockets=[socket.socket(fileno=public)])


def _exit_with_parent() -> None:
    """End at once, as the parent is gone. Nothing is finished here: a journal keeps all for the next daemon."""
    logger.error("event=engine_lost")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
