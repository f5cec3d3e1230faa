"""Transcripts of streams that have ended, for as long as they may be fetched.

The streams of one daemon: opened, left, resumed, expired, restored; and what they said.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ...streamer.audio.ingest import open_ingest
from ...streamer.config import StreamConfig
from ..cluster.topology import SingleProcess
from ..config import ServerConfig
from ..engine import Engine
from ..metrics import Metrics
from ..protocol.errors import CloseCode, ErrorCode, ProtocolError
from ..protocol.messages import Ready, Resume, Segment, Start
from .journal import Journal
from .outbox import Mailbox
from .recording import Recording
from .restoring import Dormant, row_of
from .stream import Holder, LiveStream, StreamJournal, hash_token, token_fits
from .trace import Debug

__all__ = ["Archive", "Streams", "Transcript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """``segments`` are encoded with msgpack; ``until`` is a time of the archive's clock."""

    token_hash: bytes
    segments: list[bytes]
    until: float = 0.0


class Archive:
    """In memory, and in the journal where there is one. Bounded in time and number.

    Args:
        clock: monotonic seconds.
    """

    def __init__(
        self, journal: Journal | None, config: ServerConfig, clock: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._seconds = config.retain_seconds
        self._most = config.retain_sessions
        self._clock = clock
        self._kept: OrderedDict[str, Transcript] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Transcripts in memory."""
        return len(self._kept)

    def keep(self, stream_id: str, token_hash: bytes, segments: list[bytes]) -> None:
        """Keep a transcript in memory."""
        if self._seconds > 0:
            until = self._clock() + self._seconds
            self._kept[stream_id] = Transcript(
                token_hash=token_hash, segments=segments, until=until
            )
        self.sweep()

    def find(self, stream_id: str) -> Transcript | None:
        """Return a transcript that is still kept; raises JournalError if that cannot be read."""
        self.sweep()
        if stream_id in self._kept:
            return self._kept[stream_id]
        if self._journal is None:
            return None
        row = self._journal.stream(stream_id)
        if row is None:
            return None
        return Transcript(token_hash=row.token_hash, segments=self._journal.segments(stream_id))

    def forget(self, stream_id: str) -> None:
        self._kept.pop(stream_id, None)
        if self._journal is not None:
            self._journal.delete_stream(stream_id)

    def sweep(self) -> None:
        """Forget what is too old, or too much."""
        now = self._clock()
        while self._kept:
            stream_id, oldest = next(iter(self._kept.items()))
            if oldest.until > now and len(self._kept) <= self._most:
                break
            del self._kept[stream_id]

    def sweep_journal(self) -> None:
        """Forget what the journal has kept too long, or too much of; raises JournalError."""
        if self._journal is None:
            return
        ended = [row for row in self._journal.streams() if row.done]
        oldest = self._journal.now() - self._seconds
        for number, row in enumerate(ended):
            if number >= self._most or row.touched <= oldest:
                self._journal.delete_stream(row.id)


logger = logging.getLogger(__name__)


class Streams:
    """All streams, by id.

    Raises JournalError when the journal that ``config`` names cannot be used.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServerConfig,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        topology: SingleProcess | None = None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._metrics = metrics
        self._topology = topology or SingleProcess()
        self._journal = Journal(Path(config.journal)) if config.journal else None
        keep = config.retain_seconds
        # What the /debug page shows; None: there is none.
        self.debug = Debug(engine.model_name, keep, clock) if config.debug else None
        self._live: dict[str, LiveStream] = {}
        # Streams of a daemon before this one that nobody has asked for yet.
        self._dormant = Dormant(
            self._journal, engine.model_name, self._make, self._wake, self._expire
        )
        self._archive = Archive(self._journal, config, clock)

    def __len__(self) -> int:
        """Streams that are open, with a connection or without."""
        return sum(not stream.finished for stream in self._live.values())

    def heard(self) -> dict[str, float]:
        """Seconds of audio that each open stream has received, by its id."""
        return {s.id: s.seconds_in for s in self._live.values() if not s.finished}

    def _others(self) -> int:
        """How many other streams there are, from the view of one; in all processes."""
        return max(len(self), self._topology.open[0]) - 1

    @property
    def journaled(self) -> bool:
        return self._journal is not None

    async def check_journal(self) -> None:
        """Raises JournalError where streams could not be written down now."""
        if self._journal is not None:
            await self._journal.probe()

    # Connections

    def open(self, start: Start, mailbox: Mailbox, holder: Holder) -> LiveStream:
        """Open the stream that ``start`` asks for, and answer ``ready``."""
        english_only = not self._engine.languages
        config = self._config.stream_config(start, english_only=english_only)
        stream_id, token = self._topology.new_id(), secrets.token_urlsafe(24)
        mailbox.keep = start.resume and self._config.resume_seconds > 0
        stream = self._make(stream_id, hash_token(token), start, config, mailbox)
        journal = self._journal if mailbox.keep else None
        if journal is not None:
            journal.open_stream(row_of(stream, self._engine.model_name))
        mailbox.put(
            Ready(
                session=stream_id,
                model=self._engine.model_name,
                language=config.language,
                task=start.task,
                encoding=start.encoding,
                sample_rate=start.sample_rate,
                channels=start.channels,
                token=token,
                watch=stream.watch_path,
                resume_seconds=self._config.resume_seconds if mailbox.keep else 0.0,
            ),
        )
        self._live[stream_id] = stream
        stream.holder = holder
        stream.run(self._engine, self._metrics, self._others)
        self._metrics.streams_opened += 1
        logger.info(
            "event=stream_opened stream=%s encoding=%s sample_rate=%d channels=%d",
            *(stream_id, start.encoding, start.sample_rate, start.channels),
        )
        return stream

    async def resume(self, resume: Resume, holder: Holder) -> LiveStream:
        """Return the stream, taken from whoever held it; raises ProtocolError."""
        stream = self._live.get(resume.session)
        stream = stream or await self._dormant.restore(resume.session)
        # A wrong token is answered as an unknown session: it gives nothing away. One that has expired
        # may still be finishing, but what it said meanwhile was not kept.
        # A client that has seen more than was ever said here was served by a daemon whose journal has lost
        # its end.
        known = stream is not None and stream.knows(resume.token) and stream.mailbox.keep
        if stream is None or not known or resume.seq > stream.mailbox.seq:
            self._metrics.refuse("session")
            raise ProtocolError(
                ErrorCode.UNKNOWN_SESSION,
                "no session of this name and token can be resumed; it may have expired: start anew",
            )
        if stream.holder is not None:
            await stream.holder.supersede()
        if stream.expiry is not None:
            stream.expiry.cancel()
            stream.expiry = None
        stream.holder = holder
        logger.info("event=stream_resumed stream=%s", stream.id)
        return stream

    async def leave(self, stream: LiveStream, holder: Holder) -> None:
        """The connection has ended; the stream is kept for a while if its client may come back."""
        if stream.holder is not holder:
            return  # another has taken over
        stream.holder = None
        if not stream.mailbox.keep:
            await stream.abort()
            self._live.pop(stream.id, None)
        elif not stream.suspended:
            self._expire_later(stream)

    # Readers

    def watch(self, stream_id: str, key: str) -> LiveStream | None:
        """Return an open stream to somebody who may read it: who has its token or its reader's key."""
        stream = self._live.get(stream_id)
        if stream is not None and (stream.knows(key) or stream.reads_with(key)):
            return stream
        self._metrics.refuse("session")
        return None

    # Transcripts

    def transcript(self, stream_id: str, token: str) -> list[Segment] | None:
        """Return the segments so far, or None for an unknown session or a wrong token."""
        found = self._find(stream_id, token)
        if found is None:
            return None
        return [msgspec.msgpack.decode(body, type=Segment) for body in found.segments]

    async def delete(self, stream_id: str, token: str) -> bool:
        """Forget a session, ending it if it is open; False if there is none."""
        if self._find(stream_id, token) is None:
            return False
        stream = self._live.pop(stream_id, None)
        if stream is not None:
            await stream.abort()
            stream.mailbox.close(CloseCode.NORMAL, "deleted")
            if stream.expiry is not None:
                stream.expiry.cancel()
        self._dormant.forget(stream_id)
        self._archive.forget(stream_id)
        if self.debug is not None:
            self.debug.forget(stream_id)
        return True

    def _find(self, stream_id: str, token: str) -> Transcript | None:
        stream = self._live.get(stream_id)
        found = (
            self._archive.find(stream_id)
            if stream is None
            else Transcript(token_hash=stream.token_hash, segments=stream.segments)
        )
        if found is not None and token_fits(token, found.token_hash):
            return found
        self._metrics.refuse("session")
        return None

    # A daemon's beginning and end

    def recover(self) -> None:
        """Look up what an earlier daemon left open; its clients have ``resume_seconds`` to return.

        Raises JournalError.
        """
        if self._journal is None:
            return
        self._archive.sweep_journal()
        self._dormant.look_up(self._topology.owns, self._config.resume_seconds)

    async def close(self) -> None:
        """Stop everything; what the journal holds is for the next daemon."""
        self._dormant.close()
        for stream in list(self._live.values()):
            stream.suspended = True
            if stream.expiry is not None:
                stream.expiry.cancel()
            await stream.abort()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    # Inside

    def _make(
        self,
        stream_id: str,
        token_hash: bytes,
        start: Start,
        config: StreamConfig,
        mailbox: Mailbox,
    ) -> LiveStream:
        ingest = open_ingest(start.encoding, start.sample_rate, start.channels)
        journal = self._journal if mailbox.keep else None
        stream = LiveStream(
            stream_id=stream_id,
            token_hash=token_hash,
            start=start,
            config=config,
            recording=Recording(self._engine.new_session(config), ingest),
            mailbox=mailbox,
            journal=StreamJournal(
                journal, stream_id, mailbox, self._config.journal_limit * 1024 * 1024
            ),
            on_end=self._on_end,
        )
        if self.debug is not None:
            trace = self.debug.trace(stream_id, lambda: stream.seconds_in)
            stream.hear, mailbox.watch = trace.heard, trace.told
        return stream

    def _on_end(self, stream: LiveStream) -> None:
        """The stream is finished, has failed, or was stopped."""
        if stream.suspended or stream.id not in self._live:
            return
        if self._journal is not None and stream.journal.active:
            self._journal.finish_stream(stream.id)
        else:
            self._archive.keep(stream.id, stream.token_hash, stream.segments)
        if stream.holder is None and stream.expiry is None:
            self._live.pop(stream.id, None)

    def _expire_later(self, stream: LiveStream) -> None:
        logger.info("event=stream_detached stream=%s", stream.id)
        loop = asyncio.get_running_loop()
        stream.expiry = loop.call_later(self._config.resume_seconds, self._expire, stream)

    def _expire(self, stream: LiveStream) -> None:
        """Nobody came back: what was received is completed, for whoever fetches the transcript."""
        logger.info("event=stream_expired stream=%s", stream.id)
        stream.expiry = None
        stream.mailbox.give_up()
        if stream.finished:
            self._live.pop(stream.id, None)
        else:
            stream.finish()

    def _wake(self, stream: LiveStream) -> None:
        """A stream of an earlier daemon is back."""
        self._live[stream.id] = stream
        stream.run(self._engine, self._metrics, self._others)
