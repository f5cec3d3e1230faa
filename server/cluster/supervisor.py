"""The parent of the ingress processes: it starts them, serves their jobs, and starts them again.

::

    clients ──► ingress 0 ─┐ jobs                       Each has its own listening socket of the one
    clients ──► ingress 1 ─┼─────► engine's process     address; all sockets are held here, so that
    clients ──► ingress n ─┘ ◄──── results              connections wait while a process is restarted.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..config import ServerConfig
from ..daemon.listener import BACKLOG
from ..engine import Engine
from ..errors import ConfigError, ProcessError
from ..process_stats import ProcessStats, measure_process
from ..protocol.errors import ServerError
from ..stream.journal import Journal
from .child import Child, RestartPolicy
from .engine_host import EngineHost
from .ipc import (
    CollectStats,
    EngineReport,
    IngressReady,
    Message,
    StartFailed,
    StartIngress,
    StatsReport,
    StatsTotal,
)
from .shared_counters import SharedCounters
from .topology import socket_path

__all__ = ["COMMAND", "Supervisor"]

COMMAND = (sys.executable, "-m", "whisper_stream.server.cluster.ingress")

_REPORT_SECONDS = 0.25  # between two reports of the engine's statistics
_COLLECT_SECONDS = 1.0  # for the statistics of all ingress processes
_MARGIN_SECONDS = 10.0  # on top of the time for draining, until a process is killed

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Collection:
    """A request for the statistics of all processes, not answered yet."""

    asker: int  # the ingress process that asks
    id: int  # of its request
    waiting: set[int]  # ingress processes that have not answered
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class _StatsSum:
    """Statistics of the ingress processes: the latest of each, and the counts of those that have ended."""

    latest: dict[int, ProcessStats] = field(default_factory=dict)
    past: ProcessStats = field(default_factory=ProcessStats)

    def bury(self, number: int) -> None:
        """Keep what a process has counted, and forget what it had open."""
        self.past += self.latest.pop(number, ProcessStats()).past

    def total(self) -> ProcessStats:
        return sum(self.latest.values(), start=self.past)


class Supervisor:
    """Runs the ingress processes until ``stop`` is called. Belongs to the event loop.

    Args:
        engine: decodes for all of them.
        config: the daemon's options.
        public: the listening sockets, one for each ingress process.
        certificate: paths of the certificate and its key, for wss.
        on_ready: called once all of them accept connections.
        command: starts an ingress process.
        engine_usage: returns what other processes of the engine use.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        public: Sequence[socket.socket],
        certificate: tuple[str, str | None] | None,
        on_ready: Callable[[], None],
        command: Sequence[str] = COMMAND,
        engine_usage: Callable[[], ProcessStats] = ProcessStats,
    ) -> None:
        self._engine = engine
        self._config = config
        self._public = public
        self._certificate = certificate
        self._on_ready = on_ready
        self._command = command
        self._engine_usage = engine_usage
        self._folder = ""
        self._counters: SharedCounters | None = None
        self._children: list[Child] = []
        self._hosts: dict[int, EngineHost] = {}
        self._stats = _StatsSum()
        self._collections: dict[int, _Collection] = {}
        self._requests = 0
        self._announced = False  # on_ready was called
        self._stopping = asyncio.Event()
        self._failure: ServerError | None = None
        self._loop = asyncio.get_running_loop()

    def stop(self) -> None:
        """Let the open streams finish, and end."""
        self._stopping.set()

    def send_signal(self, number: signal.Signals) -> None:
        """Pass a signal on to all ingress processes."""
        for child in self._children:
            child.send_signal(number)

    async def run(self) -> None:
        """Run the ingress processes until they are stopped.

        Raises:
            ConfigError: they cannot start as the options ask.
            JournalError: the journal cannot be used.
            ProcessError: one of them ends again and again.
        """
        if self._config.journal:
            Journal(Path(self._config.journal)).close()  # made, or found to be unusable, only once
        with tempfile.TemporaryDirectory(prefix="whisper-stream-") as folder:
            self._folder = folder
            private = [_private_socket(folder, number) for number in range(len(self._public))]
            try:
                await self._run_children(private)
            finally:
                for sock in private:
                    sock.close()
        if self._failure is not None:
            raise self._failure

    async def _run_children(self, private: Sequence[socket.socket]) -> None:
        counters = self._counters = SharedCounters.create(len(self._public))
        for number, (public, unix) in enumerate(zip(self._public, private, strict=True)):
            descriptors = (public.fileno(), unix.fileno(), counters.descriptor)
            self._children.append(Child(number, self._command, self, RestartPolicy(), descriptors))
            self._children[-1].listen()
        reporting = asyncio.create_task(self._report())
        try:
            await self._stopping.wait()
            for child in self._children:
                child.stop_restarting()
            self.send_signal(signal.SIGTERM)
            ends = [asyncio.create_task(child.wait()) for child in self._children]
            await asyncio.wait(ends, timeout=self._config.drain_seconds + _MARGIN_SECONDS)
        finally:
            reporting.cancel()
            for child in self._children:
                child.close()
                child.reap(0.0)
            for host in self._hosts.values():
                host.cancel_all()

    # Processes; the supervisor is their ChildOwner

    def on_start(self, child: Child) -> None:
        """Tell a new process what to serve."""
        certificate, key = self._certificate or (None, None)
        self._hosts[child.number] = EngineHost(child.channel, child.audio_slots, self._engine)
        child.channel.send(
            StartIngress(
                number=child.number,
                count=len(self._public),
                folder=self._folder,
                config=self._config,
                model=self._engine.model_name,
                languages=tuple(self._engine.languages),
                statistics=self._engine.statistics(),
                certificate=certificate,
                key=key,
            )
        )

    def on_message(self, child: Child, message: Message) -> None:
        """Take a job, or a message of the process about itself."""
        if self._hosts[child.number].take(message):
            return
        match message:
            case IngressReady():
                child.mark_ready()
                if not self._announced and all(each.ready for each in self._children):
                    self._announced = True
                    self._on_ready()
            case StartFailed(sentence=sentence):
                self._fail(ConfigError(sentence))
            case CollectStats(id=number):
                self._collect(child, number)
            case StatsReport(id=number, stats=stats):
                self._stats.latest[child.number] = stats
                self._note_answer(number, child.number)

    def on_lost(self, child: Child) -> None:
        """Take back what a process that has ended had open; its counts stay."""
        assert self._counters is not None
        self._hosts[child.number].cancel_all()
        self._counters.clear(child.number)
        self._stats.bury(child.number)
        for request in list(self._collections):
            self._note_answer(request, child.number)

    def on_end(self, child: Child, code: int) -> bool:
        """Start a process again, unless that has failed again and again."""
        logger.error("event=ingress_ended number=%d code=%d", child.number, code)
        if child.policy.exhausted:
            text = f"ingress process {child.number} ends again and again; its log says why"
            self._fail(ProcessError(text))
            return False
        return True

    def _fail(self, error: ServerError) -> None:
        self._failure = self._failure or error
        self._stopping.set()

    # Statistics

    def _collect(self, asker: Child, number: int) -> None:
        """Ask all processes for their statistics, for one of them that wants the sum."""
        self._requests += 1
        request = self._requests
        ready = [child for child in self._children if child.ready]
        timer = self._loop.call_later(_COLLECT_SECONDS, self._conclude, request)
        waiting = {child.number for child in ready}
        self._collections[request] = _Collection(asker.number, number, waiting, timer)
        for child in ready:
            child.channel.send(CollectStats(id=request))

    def _note_answer(self, request: int, number: int) -> None:
        collection = self._collections.get(request)
        if collection is not None:
            collection.waiting.discard(number)
            if not collection.waiting:
                self._conclude(request)

    def _conclude(self, request: int) -> None:
        """Send the sum; of a process that has not answered in time, what it said last counts."""
        collection = self._collections.pop(request)
        collection.timer.cancel()
        total = self._stats.total() + measure_process() + self._engine_usage()
        channel = self._children[collection.asker].channel
        channel.send(StatsTotal(id=collection.id, stats=total))

    async def _report(self) -> None:
        """Send all processes the engine's statistics, for as long as the daemon runs."""
        while True:
            report = EngineReport(statistics=self._engine.statistics())
            for child in self._children:
                child.channel.send(report)
            await asyncio.sleep(_REPORT_SECONDS)


def _private_socket(folder: str, number: int) -> socket.socket:
    """Return a listening socket on which the other ingress processes reach process ``number``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(socket_path(folder, number))
    sock.listen(BACKLOG)
    return sock
