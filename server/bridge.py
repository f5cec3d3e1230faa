"""Between one stream and the engine: asyncio on one side, the engine's thread on the other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..streamer.config import StreamConfig
from ..streamer.events import Done, Event
from ..streamer.ingest import PcmIngest
from ..streamer.jobs import DecodeJob, DecodeResult
from .mapping import to_wire
from .outbox import Outbox
from .wire import Ack

__all__ = ["Engine", "Session", "StreamBridge"]

logger = logging.getLogger(__name__)

SLICE_BYTES = 16_384  # fed at once, so that a large frame does not hold up other streams
ACK_INTERVAL = 0.25  # seconds, at least, between two acks
MIN_WAIT = 0.005  # seconds; keeps a wake_at in the past from spinning


class Session(Protocol):
    """What the server uses of a stream's state machine."""

    @property
    def room(self) -> int: ...
    @property
    def wake_at(self) -> float | None: ...
    @property
    def finished(self) -> bool: ...
    def feed(self, samples: NDArray[np.float32]) -> list[Event]: ...
    def next_job(self, now: float) -> DecodeJob | None: ...
    def job_done(self, result: DecodeResult, now: float) -> list[Event]: ...
    def job_failed(self, reason: str, now: float) -> list[Event]: ...
    def flush(self, flush_id: str) -> list[Event]: ...
    def finish(self) -> list[Event]: ...


class Engine(Protocol):
    """What the server uses of the engine."""

    @property
    def model_name(self) -> str: ...
    @property
    def languages(self) -> tuple[str, ...]:
        """Codes accepted; empty for a model that knows English only."""

    def new_session(self, config: StreamConfig) -> Session: ...
    def submit(self, job: DecodeJob) -> Future[DecodeResult]: ...
    def statistics(self) -> object: ...
    def close(self) -> None: ...


class StreamBridge:
    """Feeds one session, runs its jobs, and puts what it says into the outbox.

    Call push, flush and finish from one task, run pump in another, and close at the end.
    """

    def __init__(
        self, session: Session, ingest: PcmIngest, engine: Engine, outbox: Outbox, stream_id: str
    ) -> None:
        self._session = session
        self._ingest = ingest
        self._engine = engine
        self._outbox = outbox
        self._stream_id = stream_id
        self._loop = asyncio.get_running_loop()
        # Set when the session changed, so that it may have a job.
        self._news = asyncio.Event()
        # Set when the session may have room for audio again.
        self._space = asyncio.Event()
        # Acks go out at most every ACK_INTERVAL; the timer holds the one that is due.
        self._acked = -1
        self._last_ack = -ACK_INTERVAL
        self._ack_timer: asyncio.TimerHandle | None = None

    async def push(self, data: bytes) -> None:
        """Feed PCM bytes; waits while the session has no room, and never drops any."""
        for start in range(0, len(data), SLICE_BYTES):
            await self._feed(self._ingest.push(data[start : start + SLICE_BYTES]))
            self._ack_soon()
            await asyncio.sleep(0)

    def flush(self, flush_id: str) -> None:
        """Ask for everything received to be committed."""
        self._emit(self._session.flush(flush_id))
        self._news.set()

    async def finish(self) -> None:
        """No more audio; pump() returns when the rest is committed and ``done`` is queued."""
        await self._feed(self._ingest.finish())
        self._emit(self._session.finish())
        self._news.set()

    async def pump(self) -> None:
        """Run the session's jobs, one at a time, until it is finished."""
        while not self._session.finished:
            await self._outbox.writable()
            self._news.clear()
            now = self._loop.time()
            job = self._session.next_job(now)
            self._space.set()
            if job is not None:
                await self._run(job)
            elif not self._session.finished:
                await self._wait_for_news(now)

    def close(self) -> None:
        """Stop the timer. The session is not used afterwards."""
        if self._ack_timer is not None:
            self._ack_timer.cancel()
            self._ack_timer = None

    async def _feed(self, samples: NDArray[np.float32]) -> None:
        while samples.size:
            room = self._session.room
            if room <= 0:
                self._space.clear()
                self._news.set()
                await self._space.wait()
                continue
            self._emit(self._session.feed(samples[:room]))
            self._news.set()
            samples = samples[room:]

    async def _run(self, job: DecodeJob) -> None:
        future = asyncio.wrap_future(self._engine.submit(job))
        try:
            await asyncio.wait({future})
        finally:
            future.cancel()  # no effect once done; otherwise nobody wants the result any more
        now = self._loop.time()
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            reason = "cancelled" if error is None else type(error).__name__
            logger.warning("event=job_failed stream=%s reason=%s", self._stream_id, reason)
            told = f"the engine could not decode it ({reason}); the daemon's log says where"
            self._emit(self._session.job_failed(told, now))
        else:
            self._emit(self._session.job_done(future.result(), now))
        self._space.set()

    async def _wait_for_news(self, now: float) -> None:
        wake_at = self._session.wake_at
        delay = None if wake_at is None else max(MIN_WAIT, wake_at - now)
        try:
            async with asyncio.timeout(delay):
                await self._news.wait()
        except TimeoutError:
            pass  # wake_at has come

    def _emit(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Done):
                self._send_ack()
            self._outbox.put(to_wire(event, self._ingest.samples_in))

    def _ack_soon(self) -> None:
        if self._ack_timer is None:
            due = self._last_ack + ACK_INTERVAL
            self._ack_timer = self._loop.call_at(due, self._send_ack)

    def _send_ack(self) -> None:
        self.close()
        if self._ingest.samples_in != self._acked:
            self._acked = self._ingest.samples_in
            self._last_ack = self._loop.time()
            self._outbox.put(Ack(samples=self._acked))
