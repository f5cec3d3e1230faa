"""One stream with an event loop: what arrives is applied, and jobs go to the engine and come back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from ... import WhisperStreamError
from ...streamer.commands import (
    Audio,
    ClientCommand,
    Command,
    EndOfStream,
    JobDone,
    JobFailed,
    JobStarted,
    Tick,
)
from ...streamer.jobs import DecodeJob
from ..engine import Engine
from ..errors import error_origin, failure_name
from ..metrics import Metrics
from ..protocol.errors import CloseCode, ErrorCode, WarningCode
from ..protocol.messages import (
    Ack,
    Commit,
    Error,
    Gap,
    Lag,
    Resumed,
    Segment,
    ServerMessage,
    Start,
    Warning,
)
from .identity import StreamIdentity
from .outbox import Outbox, SendQueue
from .stream import Stream
from .stream_journal import Replayed, StreamJournal
from .trace import Trace

__all__ = ["Holder", "StreamRunner", "rest_seconds"]

logger = logging.getLogger(__name__)

SLICE_BYTES = 16_384  # applied at once, so that a large frame does not hold up other streams
ACK_INTERVAL = 0.5  # seconds, at least, between two acks
AHEAD_SECONDS = 5.0  # of audio more than time has passed: nobody speaks this fast
LIVE_SECONDS = 1.0  # and of a stream whose answers tell how live ones fare
MOST_REST = 20.0  # seconds
_REPLAY_SLICE = 200  # commands whose messages are published at once


class Holder(Protocol):
    """The connection that serves a stream."""

    async def supersede(self) -> None:
        """Let go of the stream: another connection goes on with it."""


class StreamRunner:
    """A stream at work. It outlasts the connections that serve it.

    All of it belongs to the event loop. ``feed`` is called by one connection at a time; a task of its own
    runs the jobs, one at a time, until the stream is finished.

    Args:
        stream: has heard nothing yet, or was replayed from the journal.
        start: what its client asked for.
        trace: shows it on the daemon's /debug page; None: there is none.
        elapsed: seconds since the stream was opened, by another daemon if need be.
        others: returns how many other streams are open.
        on_end: called once, when the stream has finished, has failed or was stopped.

    Attributes:
        holder: the connection that serves it now.
        expiry: ends the stream if nobody resumes it; set while there is no holder.
        suspended: the daemon stops, and the stream is to go on in the next one.
        segments: the closed ones, encoded with msgpack: the transcript so far.
    """

    def __init__(
        self,
        identity: StreamIdentity,
        start: Start,
        stream: Stream,
        outbox: Outbox,
        journal: StreamJournal,
        engine: Engine,
        metrics: Metrics,
        trace: Trace | None,
        *,
        elapsed: float,
        others: Callable[[], int],
        on_end: Callable[[StreamRunner], None],
    ) -> None:
        self.identity = identity
        self.start = start
        self.outbox = outbox
        self.journal = journal
        self.holder: Holder | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.suspended = False
        self.segments: list[bytes] = []
        # None once the stream has ended: its audio is not needed any longer. Its account is.
        self._stream: Stream | None = stream
        self._ack = stream.ack()
        self._seconds_in = stream.seconds_in
        self._engine = engine
        self._metrics = metrics
        self._trace = trace
        self._others = others
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._clock_offset = max(stream.now, elapsed) - self._loop.time()
        self._task: asyncio.Task[None] | None = None
        # Set when a command was applied, so that there may be a job.
        self._changed = asyncio.Event()
        # Set when there may be room for audio again.
        self._space = asyncio.Event()
        # Acks go out at most every ACK_INTERVAL; the timer holds the one that is due.
        self._acked = Ack(samples=-1)
        self._last_ack = -ACK_INTERVAL
        self._ack_timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        """The stream's name, for its client and in the log."""
        return self.identity.id

    @property
    def finished(self) -> bool:
        """True once the stream has ended, well or not."""
        return self._task is not None and self._task.done()

    @property
    def ended(self) -> bool:
        """True once no more audio is expected."""
        return self._stream is None or self._stream.ended

    @property
    def ack(self) -> Ack:
        """The account of what was received from the client."""
        return self._ack if self._stream is None else self._stream.ack()

    @property
    def seconds_in(self) -> float:
        """Audio received, in seconds."""
        return self._seconds_in if self._stream is None else self._stream.seconds_in

    # A beginning, a connection, an end

    async def restore(self, said: Iterable[Replayed], sent: int) -> None:
        """Publish again, in slices, what the stream had said before it was replayed.

        Args:
            sent: number of the last message that its client may have got.
        """
        for number, (seq, seconds_in, messages) in enumerate(said, start=1):
            self.outbox.seq = max(self.outbox.seq, seq)
            for message in messages:
                self._publish(message, seconds_in)
            if number % _REPLAY_SLICE == 0:
                await asyncio.sleep(0)
        self.outbox.seq = max(self.outbox.seq, sent)

    def run(self) -> None:
        """Begin to run jobs, or go on."""
        self._task = asyncio.create_task(self._run())

    def attach(self, queue: SendQueue, seen: int) -> None:
        """Go on with a client that has seen all messages up to ``seen``, and answer ``resumed``."""
        ack = self.ack
        resumed = Resumed(
            session=self.id, samples=ack.samples, bytes=ack.bytes, controls=ack.controls
        )
        self.outbox.attach(queue, resumed, seen)

    def join(self) -> SendQueue:
        """Return the queue to one more reader."""
        closed = tuple(msgspec.msgpack.decode(body, type=Segment) for body in self.segments)
        return self.outbox.join(closed)

    async def abort(self) -> None:
        """Stop at once, wherever the stream stands."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # The client

    async def feed(self, command: ClientCommand) -> None:
        """Apply what the client asks for, as soon as there is room; never drops any audio."""
        for piece in _pieces(command):
            await self._wait_for_room()  # what an earlier connection left is first
            if self.ended:
                return
            self._apply(piece)
            self._ack_soon()
            await self.journal.throttle()
            if isinstance(piece, Audio):
                if piece is not command:
                    await asyncio.sleep(0)
                await self._wait_for_room()

    def finish(self) -> None:
        """Take no more audio: what was received is completed."""
        if not self.ended:
            self._apply(EndOfStream())

    def reply(self, message: ServerMessage) -> None:
        """Answer the client."""
        self.outbox.reply(message)
        if self._trace is not None:
            self._trace.on_message(message, self.seconds_in)

    async def _wait_for_room(self) -> None:
        while self._stream is not None and self._stream.pending:
            self._space.clear()
            self._changed.set()
            await self._space.wait()

    # Jobs

    async def _run(self) -> None:
        try:
            await self._run_jobs()
            self.outbox.close(CloseCode.NORMAL, "done")
        except WhisperStreamError as error:
            self._fail(error, str(error))
        except Exception as error:  # noqa: BLE001 - any bug ends this stream, and no other
            self._fail(error, "something went wrong in the daemon; its log says where")
        finally:
            self._close()
            self._on_end(self)

    async def _run_jobs(self) -> None:
        stream = self._stream
        assert stream is not None
        while not stream.finished:
            await self.outbox.writable()
            self._changed.clear()
            if stream.pending and stream.room > 0:
                self._apply(Tick())
            asked = self._loop.time()
            job = self._next_job(stream)
            self._space.set()
            if job is not None:
                self._apply(await self._decode(stream, job))
                self._space.set()
                took = self._loop.time() - asked
                rest = rest_seconds(stream.seconds_ahead(self._now()), took, self._others())
                if rest > 0:
                    await asyncio.sleep(rest)
            elif stream.pending and stream.room > 0:
                await asyncio.sleep(0)
            elif not stream.finished:
                await self._changed.wait()

    def _next_job(self, stream: Stream) -> DecodeJob | None:
        out, now = stream.job, self._now()
        job = stream.next_job(now)
        if job is not None and job is not out:
            self._record(JobStarted(samples=len(job.audio)), now)
        return job

    async def _decode(self, stream: Stream, job: DecodeJob) -> JobDone | JobFailed:
        asked = self._loop.time()
        future = asyncio.wrap_future(self._engine.submit(job))
        try:
            await asyncio.wait({future})
        finally:
            future.cancel()  # no effect once done; otherwise nobody wants the result any longer
        took = self._loop.time() - asked
        self._metrics.decode_time.observe(took)
        if stream.seconds_ahead(self._now()) <= LIVE_SECONDS:
            self._metrics.turnarounds.add(took)
        error = None if future.cancelled() else future.exception()
        if error is None and not future.cancelled():
            return JobDone(result=future.result())
        reason = "cancelled" if error is None else failure_name(error)
        logger.warning("event=job_failed stream=%s reason=%s", self.id, reason)
        return JobFailed(
            reason=f"the engine could not decode it ({reason}); the daemon's log says where"
        )

    # Inside

    def _now(self) -> float:
        """Return seconds since the stream was opened, the time while no daemon ran included."""
        return self._loop.time() + self._clock_offset

    def _apply(self, command: Command) -> None:
        stream = self._stream
        assert stream is not None
        now = self._now()
        messages = stream.apply(command, now)
        self._record(command, now)
        if self._trace is not None and isinstance(command, Audio):
            self._trace.on_audio(stream.heard, stream.seconds_in)
        for message in messages:
            self._measure(message, stream.seconds_in)
            self._publish(message, stream.seconds_in)
            if isinstance(message, Segment):
                self.journal.keep(message)
        self._changed.set()

    def _record(self, command: Command, now: float) -> None:
        if not self.journal.record(command, now, self.outbox.seq):
            text = "the stream is too long for the journal: it would not survive a restart any more"
            self.reply(Warning(code=WarningCode.JOURNAL_FULL, message=text))

    def _publish(self, message: ServerMessage, seconds_in: float) -> None:
        self.outbox.publish(message)
        if isinstance(message, Segment):
            self.segments.append(msgspec.msgpack.encode(message))
        if self._trace is not None:
            self._trace.on_message(message, seconds_in)

    def _measure(self, message: ServerMessage, seconds_in: float) -> None:
        match message:
            case Commit(words=words):
                self._metrics.commit_delay.observe(max(0.0, seconds_in - words[-1].end))
            case Lag(behind=behind):
                self._metrics.lag.observe(behind)
            case Gap():
                self._metrics.errors["gap"] += 1

    def _fail(self, error: Exception, text: str) -> None:
        logger.error(
            "event=stream_failed stream=%s task=pump error=%s at=%s",
            *(self.id, type(error).__name__, error_origin(error)),
        )
        self._publish(Error(code=ErrorCode.INTERNAL, message=text), self.seconds_in)
        self.outbox.close(CloseCode.INTERNAL_ERROR, ErrorCode.INTERNAL)

    def _close(self) -> None:
        """Let go of the audio, and of who waits for room."""
        self._stop_ack_timer()
        if self._stream is not None:
            self._ack, self._seconds_in = self._stream.ack(), self._stream.seconds_in
            self._stream.close()
            self._stream = None
        self._space.set()

    def _ack_soon(self) -> None:
        if self._ack_timer is None:
            due = self._last_ack + ACK_INTERVAL
            self._ack_timer = self._loop.call_at(due, self._send_ack)

    def _send_ack(self) -> None:
        self._stop_ack_timer()
        ack = self.ack
        if ack != self._acked:
            self._acked = ack
            self._last_ack = self._loop.time()
            self._publish(ack, self.seconds_in)

    def _stop_ack_timer(self) -> None:
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None


def rest_seconds(ahead: float, took: float, others: int) -> float:
    """Return how long a stream leaves the engine to others: to each as much time as its last job took.

    Only a stream that is played faster than it was spoken rests, and only beside others: its long windows
    would take the engine from those who speak.

    Args:
        ahead: seconds of audio received beyond the time since the first.
        took: seconds from asking for the last job to its result.
        others: how many other streams are open.
    """
    if ahead <= AHEAD_SECONDS or others <= 0:
        return 0.0
    return min(MOST_REST, took * others)


def _pieces(command: ClientCommand) -> Iterator[ClientCommand]:
    """Yield ``command``, or its audio in slices."""
    if not isinstance(command, Audio) or len(command.data) <= SLICE_BYTES:
        yield command
        return
    for start in range(0, len(command.data), SLICE_BYTES):
        yield Audio(data=command.data[start : start + SLICE_BYTES])
