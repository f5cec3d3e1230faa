"""One ingress process: it holds sockets and streams, and its engine is in another process. No torch.

Started by ``supervisor.py`` with the descriptors of its line to that process, of its listening sockets
and of the counters that all processes share. It ends with its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType

import uvicorn
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from ... import WhisperStreamError
from ..daemon.listener import DaemonServer, reload, uvicorn_config
from ..daemon.process import configure_logging, freeze_gc
from ..daemon.tls import server_context
from ..errors import error_origin
from ..http.admission import Admission
from ..http.app import Hub, create_app
from ..http.auth import Account
from ..process_stats import ProcessStats
from ..protocol.codec import Codec
from ..protocol.messages import Resume
from .ipc import Channel, StartFailed, StartIngress
from .remote_engine import RemoteEngine
from .routing import Patience, Relay, relay_resume
from .shared_audio import SharedAudioSlots
from .shared_counters import SharedAccount, SharedAdmission, SharedCounters
from .topology import SingleProcess, new_id, owner_of, socket_path

__all__ = ["IngressProcess", "main"]

_REPORT_SECONDS = 2.0  # between two reports nobody asked for: what is lost where a process dies
_PUBLISH_SECONDS = 0.25

logger = logging.getLogger(f"{__package__}.ingress")  # it is run as __main__


class IngressProcess(SingleProcess):
    """One of several processes."""

    def __init__(self, hello: StartIngress, counters: SharedCounters, engine: RemoteEngine) -> None:
        self.number = hello.number
        self.count = hello.count
        self.patience = Patience()
        self._counters = counters
        self._engine = engine
        self._sockets = tuple(socket_path(hello.folder, each) for each in range(hello.count))

    def new_id(self) -> str:
        return new_id(self.number, self.count)

    def accounts(self, accounts: Sequence[Account]) -> list[Account]:
        return [SharedAccount(account, self._counters) for account in accounts]

    def admission(self, most_load: float) -> Admission:
        return SharedAdmission(most_load, self._counters)

    def deciding(self) -> AbstractContextManager[None]:
        return self._counters.lock()

    def publish(self, streams: int, connections: int) -> None:
        self._counters.publish(streams, connections)

    @property
    def open(self) -> tuple[int, int]:
        return self._counters.streams, self._counters.connections

    async def collect(self, own: ProcessStats) -> ProcessStats:
        return await self._engine.collect() or own

    def relayed(self, app: ASGIApp) -> ASGIApp:
        return Relay(app, self._elsewhere, self._sockets, self.patience)

    async def relay_resume(
        self, websocket: WebSocket, codec: Codec, resume: Resume, account: Account | None
    ) -> bool:
        there = self._elsewhere(resume.session)
        if there is None:
            return False
        await relay_resume(websocket, codec, resume, account, there, self.patience)
        return True

    def _elsewhere(self, stream_id: str) -> str | None:
        owner = owner_of(stream_id, self.count)
        return None if owner in (None, self.number) else self._sockets[owner]


class _IngressServer(DaemonServer):
    """Serves clients, and on a socket of its own what other processes pass on."""

    def __init__(
        self,
        hub: Hub,
        engine: RemoteEngine,
        hello: StartIngress,
        private: socket.socket,
        patience: Patience,
    ) -> None:
        self._tls = server_context(hello.certificate, hello.key) if hello.certificate else None
        super().__init__(hub, hello.config, self._ready, self._tls)
        self._hello = hello
        self._hub = hub
        self._engine = engine
        self._socket = private
        self._patience = patience
        self._private = uvicorn.Server(uvicorn_config(create_app(hub, private=True), hello.config))
        self._tasks: list[asyncio.Task[None]] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._engine.start()
        self._private.config.load()
        self._private.lifespan = self._private.config.lifespan_class(self._private.config)
        # Whoever asks before what an earlier process left is known would be told that there is nothing.
        await super().startup(sockets)
        await self._private.startup([self._socket])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._patience.stop()
        await super().shutdown(sockets)
        await self._private.shutdown([self._socket])
        for task in self._tasks:
            task.cancel()
        self._engine.report()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop gracefully, however often it is said: systemd tells all processes, and then the parent us.

        Nobody is let in from this moment on: a sibling's clients, sent away already, would come here.
        """
        self._hub.draining = True
        self.request_exit()

    def reload(self) -> None:
        reload(self._hub, self._tls, self._hello.certificate, self._hello.key)

    def _ready(self) -> None:
        freeze_gc()
        self._tasks = [
            asyncio.create_task(self._repeat(_PUBLISH_SECONDS, self._hub.publish)),
            asyncio.create_task(self._repeat(_REPORT_SECONDS, self._engine.report)),
        ]
        self._engine.ready()

    async def _repeat(self, seconds: float, action: object) -> None:
        assert callable(action)
        while True:
            action()
            await asyncio.sleep(seconds)


def main(argv: Sequence[str], engine_type: type[RemoteEngine] = RemoteEngine) -> int:
    """Run one ingress process; return its exit code.

    Args:
        argv: the five descriptors: line, clients' socket, other processes' socket, counters, audio_slots.
        engine_type: what makes sessions and sends their jobs.
    """
    line, public, private, counters, audio_slots = (int(each) for each in argv)
    channel = Channel(socket.socket(fileno=line))
    hello = channel.first()
    if not isinstance(hello, StartIngress):
        return 1
    configure_logging(hello.config.log_level)
    engine = engine_type(channel, SharedAudioSlots(audio_slots), hello, _orphaned)
    try:
        place = IngressProcess(hello, SharedCounters(counters, hello.number), engine)
        asyncio.run(_serve(hello, engine, place, public, private))
    except WhisperStreamError as error:
        channel.send(StartFailed(sentence=str(error)))
        return 2
    except Exception as error:  # noqa: BLE001 - the process's own boundary: one line, no traceback
        logger.error(
            "event=ingress_failed error=%s at=%s", type(error).__name__, error_origin(error)
        )
        return 1
    finally:
        engine.close()
    return 0


async def _serve(
    hello: StartIngress, engine: RemoteEngine, place: IngressProcess, public: int, private: int
) -> None:
    hub = Hub(engine, hello.config, place)
    engine.figures = hub.figures
    server = _IngressServer(hub, engine, hello, socket.socket(fileno=private), place.patience)
    with contextlib.suppress(NotImplementedError):  # where there is no SIGHUP
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, server.reload)
    await server.serve(sockets=[socket.socket(fileno=public)])


def _orphaned() -> None:
    """The engine's process is gone. Nothing is finished here: a journal keeps all for the next daemon."""
    logger.error("event=engine_lost")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
