"""One stream without I/O: commands in, messages and jobs out.

    Audio ──► ingest ──► session ──► next_job ──► (engine) ──► JobDone, JobFailed
                            └──────► messages

A stream is a state machine. The same commands at the same times give the same messages and the same jobs:
a journal of its commands brings it back, and what is live is what is replayed.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ...streamer.audio.ingest import Ingest
from ...streamer.commands import (
    Audio,
    Command,
    Configure,
    EndOfStream,
    Flush,
    JobDone,
    JobFailed,
    JobStarted,
    Tick,
)
from ...streamer.config import SAMPLE_RATE, StreamConfig
from ...streamer.events import Done, Event
from ...streamer.jobs import DecodeJob
from ..engine import Session
from ..errors import JournalError
from ..protocol.errors import ErrorCode
from ..protocol.messages import Ack, Configured, Error, ServerMessage, Warning
from .audio_checks import AudioMonitor
from .mapping import to_wire

__all__ = ["Stream"]

_NOTHING: NDArray[np.float32] = np.zeros(0, np.float32)


class Stream:
    """A session, what feeds it, and the account of what the client sent.

    Times are seconds of any clock that never goes back, and that goes on where it stood when a stream is
    brought back from its journal.

    Attributes:
        config: the options as the client last asked for them.
        job: the job that is out.
        now: the time of the latest command.
        bytes_in: bytes of audio received.
        controls: ``flush``, ``config`` and ``eos`` messages received.
        ended: no more audio is taken.
        heard: samples [n] at 16 kHz that the latest ``Audio`` gave.
    """

    def __init__(self, session: Session, ingest: Ingest, config: StreamConfig) -> None:
        self.config = config
        self.job: DecodeJob | None = None
        self.now = 0.0
        self.bytes_in = 0
        self.controls = 0
        self.ended = False
        self.heard = _NOTHING
        self._session = session
        self._ingest = ingest
        self._monitor = AudioMonitor()
        self._waiting = _NOTHING  # samples for which the session had no room yet
        self._error_told = False  # the client was told that its audio cannot be decoded
        self._end_requested = False  # the session knows that no more audio comes
        self._began: float | None = None  # when the first audio came

    @property
    def room(self) -> int:
        """Samples that the session takes now."""
        return self._session.room

    @property
    def pending(self) -> bool:
        """True while audio waits for room. Until it is fed, apply no command of the client's."""
        return self._waiting.size > 0 or self._ingest.has_more

    @property
    def finished(self) -> bool:
        """True once everything is said."""
        return self._session.finished

    @property
    def samples_in(self) -> int:
        """Whole samples received, per channel, at the client's rate."""
        return self._ingest.samples_in

    @property
    def seconds_in(self) -> float:
        """Audio received, in seconds."""
        return self._ingest.samples_out / SAMPLE_RATE

    def ack(self) -> Ack:
        """Return what was received of what the client sent."""
        return Ack(samples=self.samples_in, bytes=self.bytes_in, controls=self.controls)

    def seconds_ahead(self, now: float) -> float:
        """Return seconds of audio received beyond the time since the first: nobody speaks so fast."""
        return self.seconds_in - self._speaking_time(now)

    def apply(self, command: Command, now: float) -> list[ServerMessage]:
        """Carry out a command, and return the messages that come of it.

        Raises JournalError where the session has not the job that a ``JobStarted`` tells of.
        """
        self.now = now
        match command:
            case Audio(data=data):
                return self._receive(data)
            case Flush():
                self.controls += 1
                return self._messages(self._session.request(command))
            case Configure():
                return self._configure(command)
            case EndOfStream():
                self._end_input()
                return self._feed()
            case Tick():
                return self._feed()
            case JobStarted(samples=samples):
                job = self.next_job(now)
                if job is None or len(job.audio) != samples:
                    raise JournalError("the journal does not fit this version of the daemon")
                return []
            case JobDone(result=result):
                self.job = None
                return self._messages(self._session.finish_job(result, self._speaking_time(now)))
            case JobFailed(reason=reason):
                self.job = None
                return self._messages(self._session.fail_job(reason, self._speaking_time(now)))

    def next_job(self, now: float) -> DecodeJob | None:
        """Return the job to run: the one that is out already, or the session's next; None: none is due.

        A job that was not out before is a change of state: keep a ``JobStarted`` for a replay.
        """
        if self.job is None:
            self.job = self._session.next_job(self._speaking_time(now))
            self.now = self.now if self.job is None else now
        return self.job

    def close(self) -> None:
        """Let go of what decodes the client's bytes."""
        self._ingest.close()

    def _speaking_time(self, now: float) -> float:
        """Return seconds since the first audio came."""
        return 0.0 if self._began is None else now - self._began

    def _receive(self, data: bytes) -> list[ServerMessage]:
        if self._began is None:
            self._began = self.now
        self.heard = self._ingest.push(data)
        self.bytes_in += len(data)
        self._keep(self.heard)
        found = self._monitor.listen(self.heard)
        return [*(Warning(code=each.code, message=each.message) for each in found), *self._feed()]

    def _configure(self, command: Configure) -> list[ServerMessage]:
        self.controls += 1
        self.config = command.revise(self.config)
        answer = Configured(
            time=round(self.seconds_in, 3),
            language=self.config.language,
            endpoint_silence=self.config.endpoint_silence,
        )
        return [*self._messages(self._session.request(command)), answer]

    def _end_input(self) -> None:
        self.controls += 1
        self.ended = True
        self._keep(self._ingest.finish())

    def _keep(self, samples: NDArray[np.float32]) -> None:
        waits = self._waiting.size > 0
        self._waiting = np.concatenate((self._waiting, samples)) if waits else samples

    def _feed(self) -> list[ServerMessage]:
        """Feed what waits as far as there is room; after the last of it, tell the session of the end."""
        messages = self._messages(self._hand_over())
        if self._ingest.error is not None and not self._error_told and not self.pending:
            self._error_told = True
            if not self.ended:
                self._end_input()
                messages += self._messages(self._hand_over())
            text = f"{self._ingest.error}; what came before is completed"
            messages.append(Error(code=ErrorCode.BAD_AUDIO, message=text, fatal=False))
        if self.ended and not self.pending and not self._end_requested:
            self._end_requested = True
            messages += self._messages(self._session.request(EndOfStream()))
        return messages

    def _hand_over(self) -> list[Event]:
        if not self._waiting.size and self._ingest.has_more:
            self._waiting = self._ingest.more()
        warning = self._ingest.take_warning()
        events: list[Event] = [] if warning is None else [warning]
        count = min(self._session.room, self._waiting.size)
        if count > 0:
            fed, self._waiting = self._waiting[:count], self._waiting[count:]
            events += self._session.feed(fed)
        return events

    def _messages(self, events: Iterable[Event]) -> list[ServerMessage]:
        messages: list[ServerMessage] = []
        for event in events:
            if isinstance(event, Done):
                messages.append(self.ack())
            messages.append(to_wire(event, self.samples_in))
        return messages
