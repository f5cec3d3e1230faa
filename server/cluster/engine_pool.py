"""Several engine processes behind one daemon: an engine whose jobs run in any of them. No torch.

A process is full of Python long before a small model fills a GPU; and a GPU error that ends one process
costs no stream anything while there are others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ...streamer.engine.engine import EngineStatistics
from ...streamer.errors import EngineClosedError
from ...streamer.jobs import DecodeJob, DecodeResult
from ..config import ServerConfig
from ..errors import ConfigError, ProcessError, RemoteJobError
from ..process_stats import ProcessStats
from ..protocol.errors import ServerError
from .child import Child, RestartPolicy
from .ipc import EngineReady, EngineReport, Message, StartEngine, StartFailed, StatsReport
from .job_line import JobLine, RemoteSessions

__all__ = ["COMMAND", "EnginePool"]

COMMAND = (sys.executable, "-m", "whisper_stream.server.cluster.engine_process")

_MOST_TRIES = 3  # processes that end while they run a job, until the job is given up
_PAUSES = (0.0, 1.0, 5.0, 20.0, 60.0)  # seconds before the next start, by failures in a row
_NOTHING = EngineStatistics(
    queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=0.0
)

logger = logging.getLogger(__name__)

_Job = tuple[DecodeJob, Future[DecodeResult]]


class _Member:
    """What the pool knows of one engine process, of which there may be several one after the other."""

    def __init__(self, line: JobLine) -> None:
        self.line = line
        self.statistics = _NOTHING  # as it reported last
        self.stats = ProcessStats()


class EnginePool(RemoteSessions):
    """An engine made of several processes.

    It is made before there is an event loop; all methods but ``close`` belong to the loop that ``start`` is
    called in. A job goes to the process that has the fewest. Where a process ends, its jobs go to the
    others, or wait for the next one: streams do not notice.

    Args:
        config: names the model and the number of processes.
        on_fatal: called when no process can be started again.
        command: starts an engine process.

    Raises:
        ConfigError: a process cannot load the model; the text is its sentence.
        ProcessError: a process ended without a sentence.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_fatal: Callable[[], object],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._config = config
        self._on_fatal = on_fatal
        self._waiting: list[_Job] = []  # for a process to be ready
        self._tries: dict[Future[DecodeResult], int] = {}  # of jobs whose process has ended
        self._total = _NOTHING  # of the numbers that grow
        self._past = ProcessStats()  # of processes that have ended
        self._closed = False
        self._members: dict[int, _Member] = {}
        # all of them load at the same time
        self._children = [
            Child(number, command, self, RestartPolicy(_PAUSES)) for number in range(config.engines)
        ]
        try:
            for child in self._children:
                self.model_name, self.languages = _wait_for_model(child)
        except ServerError:
            self.close()
            raise
        super().__init__(self.languages)

    def start(self) -> None:
        """Begin to take results, in the running event loop."""
        for child in self._children:
            child.listen()
            self._begin(child)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Send ``job`` to a process. Cancelling the future drops it there, if it has not begun.

        Raises:
            EngineClosedError: ``close`` was called.
        """
        if self._closed:
            raise EngineClosedError
        future: Future[DecodeResult] = Future()
        self._place(job, future)
        return future

    def statistics(self) -> EngineStatistics:
        """Return the sums over all processes, and the mean of their busy seconds."""
        reports = [member.statistics for member in self._members.values()]
        return self._total._replace(
            queued=len(self._waiting) + sum(each.queued for each in reports),
            running=sum(each.running for each in reports),
            processes=sum(child.ready for child in self._children),
        )

    def usage(self) -> ProcessStats:
        """Return what the engine processes use."""
        return sum((member.stats for member in self._members.values()), start=self._past)

    def close(self) -> None:
        """Cancel jobs without an answer, and end the processes."""
        self._closed = True
        for child in self._children:
            child.close()
        for member in self._members.values():
            for _, future in member.line.hand_back():
                future.cancel()
        for _, future in self._waiting:
            future.cancel()
        for child in self._children:
            child.reap()

    # Jobs

    def _place(self, job: DecodeJob, future: Future[DecodeResult]) -> None:
        ready = [self._members[child.number] for child in self._children if child.ready]
        if ready:
            min(ready, key=lambda member: len(member.line)).line.submit(job, future)
        else:
            self._waiting.append((job, future))

    def _place_again(self, job: DecodeJob, future: Future[DecodeResult]) -> None:
        """Give a job whose process has ended to another one, a few times: it may be what ends them."""
        if future.done():
            return
        if future not in self._tries:
            future.add_done_callback(lambda done: self._tries.pop(done, None))
        self._tries[future] = tries = self._tries.get(future, 0) + 1
        if tries < _MOST_TRIES:
            self._place(job, future)
        elif future.set_running_or_notify_cancel():
            future.set_exception(RemoteJobError("EngineEnded"))

    # Processes; the pool is their ChildOwner

    def on_start(self, child: Child) -> None:
        """Tell a new process which model to load."""

        def drop(job: DecodeJob, future: Future[DecodeResult]) -> None:
            child.ready = False  # it can run no jobs, and will soon have ended
            asyncio.get_running_loop().call_soon(self._place_again, job, future)

        self._members[child.number] = _Member(JobLine(child.channel, child.audio_slots, drop))
        child.channel.send(
            StartEngine(number=child.number, count=self._config.engines, config=self._config)
        )

    def on_message(self, child: Child, message: Message) -> None:
        """Take an answer to a job, or a report."""
        member = self._members[child.number]
        if member.line.take(message):
            return
        match message:
            case EngineReport(statistics=statistics):
                self._count(member, statistics)
            case StatsReport(stats=stats):
                member.stats = stats
            case EngineReady():
                logger.info("event=engine_ready number=%d", child.number)
                self._begin(child)
            case StartFailed(sentence=sentence):
                logger.error("event=engine_broken number=%d: %s", child.number, sentence)

    def on_lost(self, child: Child) -> None:
        """Give the jobs of a process that has ended to the others."""
        member = self._members[child.number]
        self._past += member.stats.past
        member.statistics, member.stats = _NOTHING, ProcessStats()
        for job, future in member.line.hand_back():
            self._place_again(job, future)

    def on_end(self, child: Child, code: int) -> bool:
        """Start a process again, unless none can be started and none is left."""
        logger.error("event=engine_ended number=%d code=%d", child.number, code)
        hopeless = child.policy.exhausted and not child.policy.started
        if hopeless and not any(each.ready for each in self._children):
            logger.critical(
                "event=engines_lost: none can be started again; the lines above say why"
            )
            self._on_fatal()
            return False
        return True

    def _begin(self, child: Child) -> None:
        child.mark_ready()
        waiting, self._waiting = self._waiting, []
        for job, future in waiting:
            self._place(job, future)

    def _count(self, member: _Member, new: EngineStatistics) -> None:
        old, member.statistics = member.statistics, new
        ready = sum(child.ready for child in self._children)
        total = self._total
        self._total = total._replace(
            done=total.done + new.done - old.done,
            failed=total.failed + new.failed - old.failed,
            audio_seconds=total.audio_seconds + new.audio_seconds - old.audio_seconds,
            busy_seconds=total.busy_seconds + (new.busy_seconds - old.busy_seconds) / max(1, ready),
        )


def _wait_for_model(child: Child) -> tuple[str, tuple[str, ...]]:
    """Wait until a process has loaded its model; return the model's name and languages."""
    match child.channel.receive_first():
        case EngineReady(model=model, languages=languages):
            return model, languages
        case StartFailed(sentence=sentence):
            raise ConfigError(sentence)
        case _:
            raise ProcessError("an engine process ended at its start; its log says why")
