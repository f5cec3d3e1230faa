"""A session whose every input is written down, so that another daemon can bring it back.

Sessions are state machines without I/O: the same commands in the same order give the same state and
the same events. So a journal of commands, the engine's results among them, restores a stream
exactly, and nothing has to be decoded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...streamer import commands
from ...streamer.audio.ingest import Ingest
from ...streamer.config import SAMPLE_RATE, StreamConfig
from ...streamer.events import Event
from ...streamer.jobs import DecodeJob, DecodeResult
from ..engine import Session
from ..errors import JournalError
from .commands import Command, Configure, EndInput, Failure, Finish, Flush, Job, Push, Result

__all__ = ["Recording"]


class Recording:
    """Drives one session; tells ``record`` of every command, before its events are returned.

    Args:
        record: writes a command down; None while there is no journal.
        wall: seconds since 1970. Tells how long no daemon ran.

    Attributes:
        listen: is shown all audio at 16 kHz that comes from the client, but not what is replayed.
    """

    def __init__(
        self,
        session: Session,
        ingest: Ingest,
        record: Callable[[Command], None] | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._session = session
        self._ingest = ingest
        self.record = record
        self.listen: Callable[[NDArray[np.float32]], None] | None = None
        # Samples for which the session had no room yet.
        self._pending: NDArray[np.float32] = np.zeros(0, np.float32)
        # The job that is out.
        self.job: DecodeJob | None = None
        # What the client has sent: bytes of audio, and flush and eos messages.
        self.bytes_in = 0
        self.controls = 0
        # The client has said that no more audio comes.
        self.ended = False
        self._finish_called = False
        # When the first bytes came, by ``wall``; 0: they have not.
        self._wall = wall
        self._began = 0.0
        # The last time told to the session, and what makes of this daemon's clock the stream's own.
        self._last_now = 0.0
        self._clock_offset: float | None = None

    @property
    def samples_in(self) -> int:
        """Whole samples received, per channel, at the client's rate."""
        return self._ingest.samples_in

    @property
    def seconds_in(self) -> float:
        """Audio received, in seconds of the stream."""
        return self._ingest.samples_out / SAMPLE_RATE

    @property
    def has_pending(self) -> bool:
        """Whether audio waits for room in the session."""
        return self._pending.size > 0 or self._ingest.has_more

    @property
    def error(self) -> str | None:
        """Why nothing can be made of the client's bytes any more, in one sentence."""
        return self._ingest.error

    @property
    def finished(self) -> bool:
        return self._session.finished

    def push(self, data: bytes) -> list[Event]:
        """Take bytes of any number; what the session has no room for waits for ``drain``."""
        first = not self._began
        if first:
            self._began = self._wall()
        samples = self._take(data)
        if self.listen is not None:
            self.listen(samples)
        fed, events = self._feed(None)
        self._record(Push(data=data, fed=fed, at=self._began if first else 0.0))
        return events

    def drain(self) -> list[Event]:
        """Feed what is pending as far as there is room, and finish once all of it is fed."""
        events: list[Event] = []
        if self.has_pending and self._session.room > 0:
            self._refill()
            fed, events = self._feed(None)
            self._record(Push(fed=fed))
        if self.ended and not self.has_pending and not self._finish_called:
            events += self._finish()
            self._record(Finish())
        return events

    def flush(self, flush_id: str) -> list[Event]:
        self.controls += 1
        events = self._session.request(commands.Flush(id=flush_id))
        self._record(Flush(id=flush_id))
        return events

    def configure(self, config: StreamConfig) -> None:
        self.controls += 1
        self._session.request(_changes(config))
        self._record(Configure(config=config))

    def end_input(self) -> list[Event]:
        """The client sends no more audio; ``drain`` will finish the session."""
        self._end_input()
        fed, events = self._feed(None)
        self._record(EndInput(fed=fed))
        return events

    def next_job(self, now: float) -> DecodeJob | None:
        """The job to run: the one that is out already, after a restart, or the session's next."""
        if self.job is None:
            now = self._told(now)
            self.job = self._session.next_job(now)
            if self.job is not None:
                self._record(Job(samples=len(self.job.audio), now=now))
        return self.job

    def finish_job(self, result: DecodeResult, now: float) -> list[Event]:
        self.job = None
        now = self._told(now)
        events = self._session.finish_job(result, now)
        self._record(Result(result=result, now=now))
        return events

    def fail_job(self, reason: str, now: float) -> list[Event]:
        self.job = None
        now = self._told(now)
        events = self._session.fail_job(reason, now)
        self._record(Failure(reason=reason, now=now))
        return events

    def replay(self, command: Command) -> list[Event]:
        """Carry out a command of the journal. Raises JournalError where the session disagrees."""
        match command:
            case Push(data=data, fed=fed, at=at):
                self._began = self._began or at
                if data:
                    self._take(data)
                else:
                    self._refill()
                return self._feed(fed)[1]
            case Flush(id=flush_id):
                self.controls += 1
                return self._session.request(commands.Flush(id=flush_id))
            case Configure(config=config):
                self.controls += 1
                self._session.request(_changes(config))
                return []
            case EndInput(fed=fed):
                self._end_input()
                return self._feed(fed)[1]
            case Finish():
                return self._finish()
            case Job(samples=samples, now=now):
                self._last_now = now
                self.job = self._session.next_job(now)
                if self.job is None or len(self.job.audio) != samples:
                    raise JournalError("the journal does not fit this version of the daemon")
                return []
            case Result(result=result, now=now):
                self.job = None
                self._last_now = now
                return self._session.finish_job(result, now)
            case Failure(reason=reason, now=now):
                self.job = None
                self._last_now = now
                return self._session.fail_job(reason, now)

    def close(self) -> None:
        """The stream is over: let go of what decodes its audio."""
        self._ingest.close()

    def ahead(self, now: float) -> float:
        """Seconds of audio received more than time has passed since the first: nobody speaks that fast."""
        return self.seconds_in - self._told(now)

    def _told(self, now: float) -> float:
        """``now`` in seconds since the first bytes came, the time while no daemon ran included."""
        if not self._began:
            return self._last_now
        if self._clock_offset is None:
            self._clock_offset = max(self._last_now, self._wall() - self._began) - now
        return now + self._clock_offset

    def _take(self, data: bytes) -> NDArray[np.float32]:
        samples = self._ingest.push(data)
        self.bytes_in += len(data)
        waits = self._pending.size > 0
        self._pending = np.concatenate((self._pending, samples)) if waits else samples
        return samples

    def _refill(self) -> None:
        """What a container still held back comes once there is nothing else to feed."""
        if not self._pending.size:
            self._pending = self._ingest.more()

    def _feed(self, count: int | None) -> tuple[int, list[Event]]:
        """Hand over ``count`` samples, or as many as there is room for."""
        count = min(self._session.room, self._pending.size) if count is None else count
        warning = self._ingest.take_warning()
        events: list[Event] = [] if warning is None else [warning]
        if count <= 0:
            return 0, events
        fed, self._pending = self._pending[:count], self._pending[count:]
        return count, events + self._session.feed(fed)

    def _end_input(self) -> None:
        self.controls += 1
        self.ended = True
        self._pending = np.concatenate((self._pending, self._ingest.finish()))

    def _finish(self) -> list[Event]:
        self._finish_called = True
        return self._session.request(commands.EndOfStream())

    def _record(self, command: Command) -> None:
        if self.record is not None:
            self.record(command)


def _changes(config: StreamConfig) -> commands.Configure:
    return commands.Configure(
        language=config.language,
        languages=config.languages,
        prompt=config.prompt,
        hotwords=config.hotwords,
        endpoint_silence=config.endpoint_silence,
    )
