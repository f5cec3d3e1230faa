"""The engine's process: it starts the ingress processes, serves their jobs, and starts them again.

clients ──► ingress 0 ─┐ jobs                       Each has its own listening socket of the one
clients ──► ingress 1 ─┼─────► engine's process     address; all sockets are held here, so that
clients ──► ingress n ─┘ ◄──── results              connections wait while a process is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .. import process_stats as usage
from ..config import ServerConfig
from ..daemon.listener import BACKLOG
from ..engine import Engine
from ..errors import ConfigError, ProcessError
from ..http.health import numbers
from ..process_stats import ProcessStats
from ..protocol.errors import ServerError
from ..stream.journal import Journal
from .engine_host import EngineHost
from .engine_pool import used_by
from .ipc import (
    Channel,
    CollectStats,
    EngineReport,
    IngressReady,
    Message,
    StartFailed,
    StartIngress,
    StatsReport,
    StatsTotal,
)
from .shared_audio import SharedAudioSlots
from .shared_counters import SharedCounters
from .topology import socket_path

__all__ = ["COMMAND", "Supervisor"]

COMMAND = (sys.executable, "-m", "whisper_stream.server.cluster.ingress")  # descriptors follow

_TELL_SECONDS = 0.25  # between two statements of the engine's statistics
_COLLECT_SECONDS = 1.0  # for the figures of all ingress processes
_MARGIN_SECONDS = 10.0  # on top of the time for draining, until a process is killed
_YOUNG_SECONDS = 5.0  # a process that ends sooner was broken from the start
_MOST_YOUNG = 3  # such ends in a row, after which the daemon gives up

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ingress:
    """One ingress process, of which there may have been several."""

    number: int
    public: socket.socket
    private: socket.socket
    process: asyncio.subprocess.Process | None = None
    host: EngineHost | None = None
    ready: bool = False
    young: int = 0  # ends in a row, soon after the start


class _Collection:
    """The figures of all processes, being asked for."""

    def __init__(self, asker: _Ingress, number: int, waiting: set[int]) -> None:
        self.asker = asker
        self.number = number  # the asker's own
        self.waiting = waiting  # numbers of processes that have not answered
        self.timer: asyncio.TimerHandle | None = None


class Supervisor:
    """Runs the daemon until ``stop`` is called.

    Args:
        public: the listening sockets, one for each ingress process.
        certificate: paths of the certificate and its key, for wss.
        command: starts an ingress process.
        on_ready: called once all of them accept connections.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        public: Sequence[socket.socket],
        certificate: tuple[str, str | None] | None,
        on_ready: Callable[[], None],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._engine = engine
        self._config = config
        self._public = public
        self._certificate = certificate
        self._on_ready = on_ready
        self._command = command
        self._ingresses: list[_Ingress] = []
        self._folder = ""
        self._counters: SharedCounters | None = None
        # The newest of each process, and what those that ended had counted.
        self._figures: dict[int, ProcessStats] = {}
        self._past = ProcessStats()
        self._collections: dict[int, _Collection] = {}
        self._asked = 0
        self._stopping = asyncio.Event()
        self._failure: ServerError | None = None
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Let the open streams finish, and end."""
        self._stopping.set()

    def signal(self, number: signal.Signals) -> None:
        """Pass a signal on to all ingress processes."""
        for each in self._ingresses:
            if each.process is not None and each.process.returncode is None:
                each.process.send_signal(number)

    async def run(self) -> None:
        """Raises ServerError where the ingress processes cannot be started."""
        if self._config.journal:
            Journal(Path(self._config.journal)).close()  # made, or found to be unusable, only once
        with tempfile.TemporaryDirectory(prefix="whisper-stream-") as folder:
            self._folder = folder
            self._counters = SharedCounters.create(len(self._public))
            self._ingresses = [
                _Ingress(number, public, _private_socket(folder, number))
                for number, public in enumerate(self._public)
            ]
            tending = [asyncio.create_task(self._tend(each)) for each in self._ingresses]
            telling = asyncio.create_task(self._tell())
            try:
                await self._stopping.wait()
                self.signal(signal.SIGTERM)
                limit = self._config.drain_seconds + _MARGIN_SECONDS
                await asyncio.wait(tending, timeout=limit)
            finally:
                telling.cancel()
                for task in tending:
                    task.cancel()
                await asyncio.gather(*tending, telling, return_exceptions=True)
                for each in self._ingresses:
                    each.private.close()
        if self._failure is not None:
            raise self._failure

    async def _tend(self, ingress: _Ingress) -> None:
        """Start a process, again and again, until the daemon stops."""
        while not self._stopping.is_set():
            started = self._loop.time()
            code = await self._run_once(ingress)
            if self._stopping.is_set():
                return
            logger.error("event=ingress_ended number=%d code=%d", ingress.number, code)
            old = self._loop.time() - started >= _YOUNG_SECONDS
            ingress.young = 0 if old else ingress.young + 1
            if ingress.young >= _MOST_YOUNG:
                text = f"ingress process {ingress.number} ends again and again; its log says why"
                self._fail(ProcessError(text))

    async def _run_once(self, ingress: _Ingress) -> int:
        """Start a process, serve it, and return its exit code."""
        assert self._counters is not None
        near, far = socket.socketpair()
        audio_slots = SharedAudioSlots.create()
        descriptors = [each.fileno() for each in (far, ingress.public, ingress.private)]
        descriptors += [self._counters.descriptor, audio_slots]
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                *(str(each) for each in descriptors),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent, which passes it on
            )
            channel = Channel(near)
            channel.send(self._hello(ingress.number))
            ingress.process = process
            if self._stopping.is_set():  # since it was being started: it was not told
                process.terminate()
            ingress.host = EngineHost(
                channel,
                SharedAudioSlots(audio_slots),
                self._engine,
                lambda message: self._take(ingress, message),
            )
        finally:
            far.close()
            os.close(audio_slots)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            ingress.host.close()
            ingress.host, ingress.ready = None, False
            self._bury(ingress.number)

    def _hello(self, number: int) -> StartIngress:
        certificate, key = self._certificate or (None, None)
        return StartIngress(
            number=number,
            count=len(self._public),
            folder=self._folder,
            config=self._config,
            model=self._engine.model_name,
            languages=tuple(self._engine.languages),
            certificate=certificate,
            key=key,
        )

    def _take(self, ingress: _Ingress, message: Message) -> None:
        match message:
            case IngressReady():
                ingress.ready = True
                if self._on_ready is not None and all(each.ready for each in self._ingresses):
                    self._on_ready()
                    self._on_ready = _nothing
            case StartFailed(sentence=sentence):
                self._fail(ConfigError(sentence))
            case CollectStats(id=number):
                self._collect(ingress, number)
            case StatsReport(id=number, figures=figures):
                self._figures[ingress.number] = figures
                self._answered(number, ingress.number)

    def _fail(self, error: ServerError) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    def _bury(self, number: int) -> None:
        """An ingress process has ended: what it counted stays, what it had open does not."""
        assert self._counters is not None
        self._counters.clear(number)
        self._past += self._figures.pop(number, ProcessStats()).past
        for asked in list(self._collections):
            self._answered(asked, number)

    # Statistics of the whole daemon

    def _collect(self, asker: _Ingress, number: int) -> None:
        self._asked += 1
        waiting = {each.number for each in self._ingresses if each.ready}
        collection = self._collections[self._asked] = _Collection(asker, number, waiting)
        collection.timer = self._loop.call_later(_COLLECT_SECONDS, self._conclude, self._asked)
        for each in self._ingresses:
            if each.number in waiting and each.host is not None:
                each.host.channel.send(CollectStats(id=self._asked))

    def _answered(self, asked: int, number: int) -> None:
        collection = self._collections.get(asked)
        if collection is not None:
            collection.waiting.discard(number)
            if not collection.waiting:
                self._conclude(asked)

    def _conclude(self, asked: int) -> None:
        """All have answered, or have had their time: then what they said last counts."""
        collection = self._collections.pop(asked)
        assert collection.timer is not None
        collection.timer.cancel()
        own = usage.figures() + used_by(self._engine)
        figures = sum(self._figures.values(), start=self._past + own)
        if collection.asker.host is not None:
            answer = StatsTotal(id=collection.number, figures=figures)
            collection.asker.host.channel.send(answer)

    async def _tell(self) -> None:
        """Tell the ingress processes how the engine does."""
        while True:
            told = EngineReport(fields=numbers(self._engine.statistics()))
            for each in self._ingresses:
                if each.host is not None:
                    each.host.channel.send(told)
            await asyncio.sleep(_TELL_SECONDS)


def _nothing() -> None:
    """Ready only once."""


def _private_socket(folder: str, number: int) -> socket.socket:
    """A listening socket by which the other ingress processes reach this one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(socket_path(folder, number))
    sock.listen(BACKLOG)
    return sock
