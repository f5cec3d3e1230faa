"""Between one stream and the engine: asyncio on one side, the engine's thread on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from ...streamer.config import SAMPLE_RATE, StreamConfig
from ...streamer.events import Commit, Done, Event, Gap, Lag, Partial, SegmentClosed
from ...streamer.jobs import DecodeJob
from ..engine import Engine, Session
from ..errors import failure_name
from ..metrics import Metrics
from ..protocol.errors import ErrorCode
from ..protocol.messages import Ack, Configured, Error, Segment
from .mapping import to_wire
from .outbox import Mailbox
from .recording import Recording

__all__ = ["Engine", "Session", "StreamBridge", "configured", "held", "say"]

logger = logging.getLogger(__name__)

SLICE_BYTES = 16_384  # fed at once, so that a large frame does not hold up other streams
ACK_INTERVAL = 0.5  # seconds, at least, between two acks
AHEAD_SECONDS = 5.0  # of audio more than time has passed: nobody speaks this fast
LIVE_SECONDS = 1.0  # and of a stream whose answers tell how live ones fare
MOST_REST = 20.0  # seconds


def say(
    events: Iterable[Event],
    recording: Recording,
    mailbox: Mailbox,
    on_segment: Callable[[Segment], None],
) -> None:
    """Put what a session said into its mailbox. Depends on nothing but its arguments."""
    for event in events:
        if isinstance(event, Done):
            mailbox.put(held(recording))
        message = to_wire(event, recording.samples_in)
        mailbox.put(message, lasting=not isinstance(event, (Partial, Lag)))
        if isinstance(event, SegmentClosed):
            assert isinstance(message, Segment)
            on_segment(message)


def held(recording: Recording) -> Ack:
    """What the server holds of what the client sent."""
    return Ack(samples=recording.samples_in, bytes=recording.bytes_in, controls=recording.controls)


def configured(config: StreamConfig, recording: Recording) -> Configured:
    """The answer to ``config``."""
    return Configured(
        time=round(recording.seconds_in, 3),
        language=config.language,
        endpoint_silence=config.endpoint_silence,
    )


class StreamBridge:
    """Feeds one session, runs its jobs, and puts what it says into the mailbox.

    Call push, flush and finish from one task, run pump in another, and close at the end.

    Args:
        throttle: awaited after each piece of audio; holds it up while the journal is behind.
        others: how many other streams are open.
    """

    def __init__(
        self,
        recording: Recording,
        engine: Engine,
        mailbox: Mailbox,
        stream_id: str,
        on_segment: Callable[[Segment], None],
        throttle: Callable[[], Awaitable[None]],
        metrics: Metrics,
        others: Callable[[], int],
    ) -> None:
        self._recording = recording
        self._engine = engine
        self._mailbox = mailbox
        self._stream_id = stream_id
        self._on_segment = on_segment
        self._throttle = throttle
        self._metrics = metrics
        self._others = others
        self._loop = asyncio.get_running_loop()
        # Set when the session changed, so that it may have a job.
        self._news = asyncio.Event()
        # Set when the session may have room for audio again.
        self._space = asyncio.Event()
        # Acks go out at most every ACK_INTERVAL; the timer holds the one that is due.
        self._acked = Ack(samples=-1)
        self._last_ack = -ACK_INTERVAL
        self._ack_timer: asyncio.TimerHandle | None = None

    async def push(self, data: bytes) -> None:
        """Feed PCM bytes; waits while the session has no room, and never drops any."""
        for start in range(0, len(data), SLICE_BYTES):
            self._emit(self._recording.push(data[start : start + SLICE_BYTES]))
            self._news.set()
            self._ack_soon()
            await self._throttle()
            if start + SLICE_BYTES < len(data):
                await asyncio.sleep(0)
            while self._recording.has_pending:
                self._space.clear()
                self._news.set()
                await self._space.wait()
            if self._recording.error is not None:
                self.finish()
                return

    def flush(self, flush_id: str) -> None:
        """Ask for everything received to be committed."""
        self._emit(self._recording.flush(flush_id))
        self._news.set()
        self._ack_soon()

    def configure(self, config: StreamConfig) -> None:
        """From here on the options are ``config``; answers ``configured``."""
        self._recording.configure(config)
        self._mailbox.put(configured(config, self._recording), lasting=True)
        self._news.set()
        self._ack_soon()

    def finish(self) -> None:
        """No more audio; pump() returns when the rest is committed and ``done`` is queued."""
        if self._recording.ended:
            return
        self._emit(self._recording.end_input())
        if self._recording.error is not None:
            text = f"{self._recording.error}; what came before is completed"
            self._mailbox.put(Error(code=ErrorCode.BAD_AUDIO, message=text, fatal=False))
        self._news.set()

    async def pump(self) -> None:
        """Run the session's jobs, one at a time, until it is finished."""
        while not self._recording.finished:
            await self._mailbox.writable()
            self._news.clear()
            self._emit(self._recording.drain())
            now = self._loop.time()
            job = self._recording.next_job(now)
            self._space.set()
            if job is not None:
                await self._run(job)
                await self._rest(self._loop.time() - now)
            elif not self._recording.finished:
                await self._news.wait()

    def close(self) -> None:
        """Stop the timer. The session is not used afterwards."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    async def _run(self, job: DecodeJob) -> None:
        asked = self._loop.time()
        future = asyncio.wrap_future(self._engine.submit(job))
        try:
            await asyncio.wait({future})
        finally:
            future.cancel()  # no effect once done; otherwise nobody wants the result any more
        now = self._loop.time()
        self._metrics.decode_time.observe(now - asked)
        if self._recording.ahead(now) <= LIVE_SECONDS:
            self._metrics.turnarounds.add(now - asked)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            reason = "cancelled" if error is None else failure_name(error)
            logger.warning("event=job_failed stream=%s reason=%s", self._stream_id, reason)
            told = f"the engine could not decode it ({reason}); the daemon's log says where"
            self._emit(self._recording.fail_job(told, now))
        else:
            self._emit(self._recording.finish_job(future.result(), now))
        self._space.set()

    async def _rest(self, took: float) -> None:
        """Leave the engine to others: to each as much time as the last job took.

        Only a stream that is played faster than it was spoken rests, and only beside others: its long
        windows would take the engine from those who speak.
        """
        if self._recording.ahead(self._loop.time()) > AHEAD_SECONDS and self._others() > 0:
            await asyncio.sleep(min(MOST_REST, took * self._others()))

    def _emit(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Commit):
                last = event.words[-1].end_sample / SAMPLE_RATE
                self._metrics.commit_delay.observe(max(0.0, self._recording.seconds_in - last))
            elif isinstance(event, Lag):
                self._metrics.lag.observe(event.behind_seconds)
            elif isinstance(event, Gap):
                self._metrics.errors["gap"] += 1
        say(events, self._recording, self._mailbox, self._on_segment)

    def _ack_soon(self) -> None:
        if self._ack_timer is None:
            due = self._last_ack + ACK_INTERVAL
            self._ack_timer = self._loop.call_at(due, self._send_ack)

    def _send_ack(self) -> None:
        self.close()
        ack = held(self._recording)
        if ack != self._acked:
            self._acked = ack
            self._last_ack = self._loop.time()
            self._mailbox.put(ack)
