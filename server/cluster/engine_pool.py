"""One engine process, as its parent sees it: started, listened to, ended. See ``engine_pool.py``.

Several engine processes behind one daemon: the engine as the daemon sees it, whose jobs run in any of them.

A process is full of Python long before a small model fills a GPU; and a GPU error that ends one process
costs no stream anything while there are others. No torch here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from ...streamer.audio.vad import make_detector
from ...streamer.config import StreamConfig
from ...streamer.engine.engine import EngineStatistics
from ...streamer.errors import EngineClosedError
from ...streamer.jobs import DecodeJob, DecodeResult
from ...streamer.session.session import StreamSession
from ..config import ServerConfig
from ..errors import ConfigError, ProcessError, RemoteJobError
from ..process_stats import ProcessStats
from ..protocol.errors import ServerError
from .ipc import Channel, EngineReady, EngineReport, Message, StartEngine, StartFailed, StatsReport
from .remote_engine import JobLine, text_codec
from .shared_audio import SharedAudioSlots

__all__ = ["COMMAND", "EngineMember", "EnginePool", "used_by"]

_END_SECONDS = 10.0  # that a process may take to end


class EngineMember:
    """Starts the process; it is to be told first what to load, by ``channel``.

    Attributes:
        ready: jobs may be sent.
        since: when it was ready; None: it never was.
        failures: of the processes of this number before it, in a row.
        statistics, figures: what it said last.

    Args:
        command: starts it, with the descriptors of line and audio_slots behind.
        on_dropped: called with this member, and a job that the process gave up as it can run none any more.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        on_dropped: Callable[[EngineMember, DecodeJob, Future[DecodeResult]], None],
        failures: int,
    ) -> None:
        self.number = number
        self.ready = False
        self.since: float | None = None
        self.failures = failures
        self.statistics: dict[str, int | float] = {}
        self.figures = ProcessStats()
        near, far = socket.socketpair()
        audio_slots = SharedAudioSlots.create()
        descriptors = [far.fileno(), audio_slots]
        try:
            self._process = subprocess.Popen(
                [*command, *(str(each) for each in descriptors)],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # ours is for the address
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is for the parent
            )
            self.channel = Channel(near)
            self.line = JobLine(
                self.channel,
                SharedAudioSlots(audio_slots),
                lambda job, future: on_dropped(self, job, future),
            )
        finally:
            far.close()
            os.close(audio_slots)

    def first_words(self) -> tuple[str, tuple[str, ...]]:
        """Wait for the process to load its model, before ``channel`` is started -> its name and languages.

        Raises ConfigError with the sentence of one that cannot, ProcessError where it ends without.
        """
        match self.channel.first():
            case EngineReady(model=model, languages=languages):
                return model, languages
            case StartFailed(sentence=sentence):
                raise ConfigError(sentence)
            case _:
                raise ProcessError("an engine process ended at its start; its log says why")

    def end(self) -> int:
        """Wait for the process, whose line is cut, and kill it where it does not end -> its exit code."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


COMMAND = (
    sys.executable,
    "-m",
    "whisper_stream.server.cluster.engine_process",
)  # descriptors follow

_MOST_TRIES = 3  # processes that end while they run a job, until it is given up
_YOUNG_SECONDS = 5.0  # a process that ends sooner after it was ready has failed
_MOST_FAILURES = 3  # in a row, after which all is given up if no process can be started
# seconds before a process is started again, by failures in a row
_PAUSES = (0.0, 1.0, 5.0, 20.0, 60.0)
_SUMS = ("done", "failed", "audio_seconds")  # statistics that grow

logger = logging.getLogger(__name__)


class EnginePool:
    """Made before there is an event loop; all methods but ``close`` belong to the one that ``start`` is called in.

    A job goes to the process that has the fewest. Where a process ends, its jobs go to the others, or wait
    for the next one: nobody is told.

    Args:
        command: starts an engine process.
        on_fatal: called when no process can be started any more.

    Raises ConfigError with the sentence of a process that cannot load the model.
    """

    def __init__(
        self,
        config: ServerConfig,
        on_fatal: Callable[[], object],
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._config = config
        self._command = command
        self._on_fatal = on_fatal
        self._waiting: list[
            tuple[DecodeJob, Future[DecodeResult]]
        ] = []  # for a process to be ready
        self._tries: dict[Future[DecodeResult], int] = {}  # of jobs whose process has ended
        self._sums = dict.fromkeys(_SUMS, 0.0)
        self._busy_seconds = 0.0
        self._past = ProcessStats()
        self._restarts: set[asyncio.Task[None]] = set()
        self._closed = False
        # all of them load at the same time
        self._members = [self._spawn(number) for number in range(config.engines)]
        try:
            for member in self._members:
                self.model_name, self.languages = member.first_words()
        except ServerError:
            self.close()
            raise
        # Loaded now: no stream's first prompt should wait for it.
        self._codec = text_codec(self.languages)

    def start(self) -> None:
        """Begin to take results, in the running event loop."""
        for member in self._members:
            self._listen(member)
            self._begin(member)

    def new_session(self, config: StreamConfig) -> StreamSession:
        """Raises DetectorError where its detector is missing."""
        return StreamSession(config, make_detector(config.detector), self._codec)

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        """Send ``job`` to a process. Cancelling the future drops it there, if it has not begun.

        Raises EngineClosedError after ``close``.
        """
        if self._closed:
            raise EngineClosedError
        future: Future[DecodeResult] = Future()
        self._place(job, future)
        return future

    def statistics(self) -> EngineStatistics:
        """Those of all processes: sums, and the mean of their busy seconds."""
        told = [member.statistics for member in self._members]
        return EngineStatistics(
            queued=len(self._waiting) + int(sum(each.get("queued", 0) for each in told)),
            running=int(sum(each.get("running", 0) for each in told)),
            done=int(self._sums["done"]),
            failed=int(self._sums["failed"]),
            audio_seconds=self._sums["audio_seconds"],
            busy_seconds=self._busy_seconds,
            processes=sum(member.ready for member in self._members),
        )

    @property
    def figures(self) -> ProcessStats:
        """What the processes use."""
        return sum((member.figures for member in self._members), start=self._past)

    def close(self) -> None:
        """Hang up: jobs that are not answered are cancelled, and the processes end."""
        self._closed = True
        for restart in self._restarts:
            restart.cancel()
        for member in self._members:
            for _, future in member.line.end():
                future.cancel()
            member.channel.close()
        for _, future in self._waiting:
            future.cancel()
        for member in self._members:
            member.end()

    # Jobs

    def _place(self, job: DecodeJob, future: Future[DecodeResult]) -> None:
        ready = [member for member in self._members if member.ready]
        if ready:
            min(ready, key=lambda member: member.line.out).line.submit(job, future)
        else:
            self._waiting.append((job, future))

    def _place_again(self, job: DecodeJob, future: Future[DecodeResult]) -> None:
        """A job whose process has ended: it may be what ended it."""
        if future.done():
            return
        if future not in self._tries:
            future.add_done_callback(lambda done: self._tries.pop(done, None))
        self._tries[future] = tries = self._tries.get(future, 0) + 1
        if tries < _MOST_TRIES:
            self._place(job, future)
        elif future.set_running_or_notify_cancel():
            future.set_exception(RemoteJobError("EngineEnded"))

    # Processes

    def _spawn(self, number: int, failures: int = 0) -> EngineMember:
        """``failures``: of the processes of this number before, in a row."""
        member = EngineMember(number, self._command, self._dropped, failures)
        asked = StartEngine(number=number, count=self._config.engines, config=self._config)
        member.channel.send(asked)
        return member

    def _dropped(self, member: EngineMember, job: DecodeJob, future: Future[DecodeResult]) -> None:
        """A process said that it can run no job any more: soon it will have ended."""
        member.ready = False
        asyncio.get_running_loop().call_soon(self._place_again, job, future)

    def _listen(self, member: EngineMember) -> None:
        member.channel.start(partial(self._take, member), partial(self._lost, member))

    def _take(self, member: EngineMember, message: Message) -> None:
        if member.line.take(message):
            return
        match message:
            case EngineReport(fields=fields):
                self._count(member, fields)
            case StatsReport(figures=figures):
                member.figures = figures
            case EngineReady():
                logger.info("event=engine_ready number=%d", member.number)
                self._begin(member)
            case StartFailed(sentence=sentence):
                logger.error("event=engine_broken number=%d: %s", member.number, sentence)

    def _begin(self, member: EngineMember) -> None:
        member.ready, member.since = True, asyncio.get_running_loop().time()
        waiting, self._waiting = self._waiting, []
        for job, future in waiting:
            self._place(job, future)

    def _count(self, member: EngineMember, fields: dict[str, int | float]) -> None:
        before, member.statistics = member.statistics, fields
        for name in _SUMS:
            self._sums[name] += fields.get(name, 0) - before.get(name, 0)
        ready = sum(each.ready for each in self._members)
        spent = fields.get("busy_seconds", 0.0) - before.get("busy_seconds", 0.0)
        self._busy_seconds += spent / max(1, ready)

    def _lost(self, member: EngineMember) -> None:
        if self._closed:
            return
        self._past += member.figures.past
        now, since = asyncio.get_running_loop().time(), member.since
        young = since is None or now - since < _YOUNG_SECONDS
        failures = member.failures + 1 if young else 0
        member.ready = False
        for job, future in member.line.end():
            self._place_again(job, future)
        restart = asyncio.get_running_loop().create_task(self._restart(member, failures))
        self._restarts.add(restart)
        restart.add_done_callback(self._restarts.discard)

    async def _restart(self, old: EngineMember, failures: int) -> None:
        code = await asyncio.to_thread(old.end)
        logger.error("event=engine_ended number=%d code=%d", old.number, code)
        given_up = old.since is None and failures >= _MOST_FAILURES
        if given_up and not any(each.ready for each in self._members):
            logger.critical(
                "event=engines_lost: none can be started again; the lines above say why"
            )
            self._on_fatal()
            return
        await asyncio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        member = self._spawn(old.number, failures)
        self._members[old.number] = member
        self._listen(member)


def used_by(engine: object) -> ProcessStats:
    """What an engine uses besides this process."""
    return engine.figures if isinstance(engine, EnginePool) else ProcessStats()
