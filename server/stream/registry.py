"""The streams of one process: opened, left, resumed, expired, and brought back from the journal."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from ...streamer.audio.ingest import open_ingest
from ...streamer.config import StreamConfig
from ...streamer.errors import StreamerError
from ..cluster.topology import SingleProcess
from ..config import ServerConfig
from ..engine import Engine
from ..errors import JournalError, error_origin
from ..metrics import Metrics
from ..protocol.errors import CloseCode, ErrorCode, ProtocolError
from ..protocol.messages import Ready, Resume, Segment, Start
from .archive import Archive, ArchivedTranscript
from .identity import StreamIdentity, hash_token, token_matches
from .journal import Journal, StreamRow
from .outbox import Outbox
from .runner import Holder, StreamRunner
from .stream import Stream
from .stream_journal import StreamJournal
from .trace import Debug

__all__ = ["Streams"]

logger = logging.getLogger(__name__)


class Streams:
    """All streams, by id. Belongs to the event loop.

    A stream of an earlier daemon is only a row of the journal until its client comes back, or too long
    has passed. Then a thread replays it; the thread touches nothing that others see.

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
        self._archive = Archive(self._journal, config, clock)
        self._live: dict[str, StreamRunner] = {}
        # Streams of an earlier daemon that nobody has asked for yet, and those being brought back.
        self._rows: dict[str, StreamRow] = {}
        self._restoring: dict[str, asyncio.Task[StreamRunner | None]] = {}
        self._recovery_timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Streams that are open, with a connection or without."""
        return sum(not stream.finished for stream in self._live.values())

    def seconds_in(self) -> dict[str, float]:
        """Return the seconds of audio that each open stream has received, by its id."""
        return {s.id: s.seconds_in for s in self._live.values() if not s.finished}

    async def check_journal(self) -> None:
        """Raises JournalError where streams could not be written down now."""
        if self._journal is not None:
            await self._journal.probe()

    # Connections

    def open(self, start: Start, outbox: Outbox, holder: Holder) -> StreamRunner:
        """Open the stream that ``start`` asks for, and answer ``ready``."""
        config = self._config.stream_config(start, english_only=not self._engine.languages)
        token = secrets.token_urlsafe(24)
        identity = StreamIdentity(self._topology.new_id(), hash_token(token))
        outbox.keep = start.resume and self._config.resume_seconds > 0
        runner = self._runner(
            identity,
            start,
            self._stream(start, config),
            outbox,
            self._stream_journal(identity.id, keep=outbox.keep),
        )
        if self._journal is not None and outbox.keep:
            self._journal.open_stream(_row(identity, self._engine.model_name, start, config))
        runner.reply(
            Ready(
                session=identity.id,
                model=self._engine.model_name,
                language=config.language,
                task=start.task,
                encoding=start.encoding,
                sample_rate=start.sample_rate,
                channels=start.channels,
                token=token,
                watch=identity.watch_path,
                resume_seconds=self._config.resume_seconds if outbox.keep else 0.0,
            ),
        )
        self._live[identity.id] = runner
        runner.holder = holder
        runner.run()
        self._metrics.streams_opened += 1
        logger.info(
            "event=stream_opened stream=%s encoding=%s sample_rate=%d channels=%d",
            *(identity.id, start.encoding, start.sample_rate, start.channels),
        )
        return runner

    async def resume(self, resume: Resume, holder: Holder) -> StreamRunner:
        """Return the stream, taken from the connection that held it; raises ProtocolError."""
        runner = self._live.get(resume.session) or await self._restore(resume.session, resume.token)
        # A wrong token is answered as an unknown session: it gives nothing away. One that has expired
        # may still be finishing, but what it said meanwhile was not kept.
        # A client that has seen more than was ever said here was served by a daemon whose journal has lost
        # its end.
        known = runner is not None and runner.identity.accepts(resume.token) and runner.outbox.keep
        if runner is None or not known or resume.seq > runner.outbox.seq:
            self._metrics.refuse("session")
            raise ProtocolError(
                ErrorCode.UNKNOWN_SESSION,
                "no session of this name and token can be resumed; it may have expired: start anew",
            )
        if runner.holder is not None:
            await runner.holder.supersede()
        if runner.expiry is not None:
            runner.expiry.cancel()
            runner.expiry = None
        runner.holder = holder
        logger.info("event=stream_resumed stream=%s", runner.id)
        return runner

    async def leave(self, runner: StreamRunner, holder: Holder) -> None:
        """End a connection's hold; the stream is kept for a while if its client may come back."""
        if runner.holder is not holder:
            return  # another has taken over
        runner.holder = None
        if not runner.outbox.keep:
            await runner.abort()
            self._live.pop(runner.id, None)
        elif not runner.suspended:
            logger.info("event=stream_detached stream=%s", runner.id)
            self._expire_later(runner)

    # Readers

    def watch(self, stream_id: str, key: str) -> StreamRunner | None:
        """Return an open stream for a reader whose key is its reader's key, or its token."""
        runner = self._live.get(stream_id)
        if runner is not None and (
            runner.identity.accepts(key) or runner.identity.accepts_reader(key)
        ):
            return runner
        self._metrics.refuse("session")
        return None

    # Transcripts

    def transcript(self, stream_id: str, token: str) -> list[Segment] | None:
        """Return the segments so far, or None for an unknown session or a wrong token.

        Raises JournalError where the journal cannot be read.
        """
        found = self._find(stream_id, token)
        if found is None:
            return None
        return [msgspec.msgpack.decode(body, type=Segment) for body in found.segments]

    async def delete(self, stream_id: str, token: str) -> bool:
        """Forget a session, ending it if it is open; False if there is none.

        Raises JournalError where the journal cannot be read.
        """
        if self._find(stream_id, token) is None:
            return False
        runner = self._live.pop(stream_id, None)
        if runner is not None:
            await runner.abort()
            runner.outbox.close(CloseCode.NORMAL, "deleted")
            if runner.expiry is not None:
                runner.expiry.cancel()
        self._rows.pop(stream_id, None)
        self._archive.forget(stream_id)
        if self.debug is not None:
            self.debug.forget(stream_id)
        return True

    def _find(self, stream_id: str, token: str) -> ArchivedTranscript | None:
        runner = self._live.get(stream_id)
        found = (
            self._archive.find(stream_id)
            if runner is None
            else ArchivedTranscript(token_hash=runner.identity.token_hash, segments=runner.segments)
        )
        if found is not None and token_matches(token, found.token_hash):
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
        rows = [row for row in self._journal.streams() if self._topology.owns(row.id)]
        self._rows = {row.id: row for row in rows if not row.done}
        if self._rows:
            logger.info("event=streams_recovered streams=%d", len(self._rows))
            loop = asyncio.get_running_loop()
            self._recovery_timer = loop.call_later(
                self._config.resume_seconds, self._start_expiring
            )

    async def close(self) -> None:
        """Stop everything; what the journal holds is for the next daemon."""
        if self._recovery_timer is not None:
            self._recovery_timer.cancel()
        if self._expiring is not None:
            self._expiring.cancel()
        # A thread that replays a stream owns it until it is done.
        await asyncio.gather(*self._restoring.values(), return_exceptions=True)
        for runner in list(self._live.values()):
            runner.suspended = True
            if runner.expiry is not None:
                runner.expiry.cancel()
            await runner.abort()
        if self._journal is not None:
            await asyncio.to_thread(self._journal.close)

    # Making streams, and bringing them back

    def _stream(self, start: Start, config: StreamConfig) -> Stream:
        ingest = open_ingest(start.encoding, start.sample_rate, start.channels)
        return Stream(self._engine.new_session(config), ingest, config)

    def _stream_journal(self, stream_id: str, *, keep: bool = True) -> StreamJournal:
        limit = self._config.journal_limit * 1024 * 1024
        return StreamJournal(self._journal if keep else None, stream_id, limit)

    def _runner(
        self,
        identity: StreamIdentity,
        start: Start,
        stream: Stream,
        outbox: Outbox,
        journal: StreamJournal,
        elapsed: float = 0.0,
    ) -> StreamRunner:
        return StreamRunner(
            identity,
            start,
            stream,
            outbox,
            journal,
            self._engine,
            self._metrics,
            None if self.debug is None else self.debug.trace(identity.id),
            elapsed=elapsed,
            others=self._others,
            on_end=self._on_end,
        )

    def _others(self) -> int:
        """Return how many other streams there are, from the view of one; in all processes."""
        return max(len(self), self._topology.open[0]) - 1

    async def _restore(self, stream_id: str, token: str) -> StreamRunner | None:
        """Bring a stream back for a client with its token; None if it is not there or cannot be."""
        row = self._rows.get(stream_id)
        if row is not None and not token_matches(token, row.token_hash):
            return None
        return await self._bring_back(stream_id)

    async def _bring_back(self, stream_id: str) -> StreamRunner | None:
        if stream_id not in self._restoring:
            row = self._rows.pop(stream_id, None)
            if row is None:
                return None
            self._restoring[stream_id] = asyncio.create_task(self._replay(row))
        try:
            return await asyncio.shield(self._restoring[stream_id])
        finally:
            self._restoring.pop(stream_id, None)

    async def _replay(self, row: StreamRow) -> StreamRunner | None:
        """Make a stream of the journal as it was, and run it. It expires if nobody resumes it."""
        assert self._journal is not None
        try:
            start, config = self._options(row)
            stream, journal = self._stream(start, config), self._stream_journal(row.id)
            try:
                said = await asyncio.to_thread(journal.replay, stream)
            except BaseException:
                stream.close()
                raise
        except (JournalError, StreamerError) as error:
            logger.error("event=restore_failed stream=%s at=%s", row.id, error_origin(error))
            self._journal.finish_stream(row.id)
            return None
        identity = StreamIdentity(row.id, row.token_hash)
        elapsed = self._journal.now() - row.opened
        runner = self._runner(identity, start, stream, Outbox(keep=True), journal, elapsed)
        await runner.restore(said, row.sent)
        self._live[row.id] = runner
        self._expire_later(runner)
        runner.run()
        logger.info("event=stream_restored stream=%s", row.id)
        return runner

    def _options(self, row: StreamRow) -> tuple[Start, StreamConfig]:
        """Return what a stream was opened with; raises JournalError where it cannot go on here."""
        if row.model != self._engine.model_name:
            raise JournalError(f"the stream was begun with the model {row.model}")
        try:
            start = msgspec.msgpack.decode(row.start, type=Start)
            return start, msgspec.msgpack.decode(row.config, type=StreamConfig)
        except (msgspec.DecodeError, ValueError):
            raise JournalError("the journal holds options that cannot be used") from None

    # The end of a stream

    def _on_end(self, runner: StreamRunner) -> None:
        """Keep the transcript of a stream that is finished, has failed, or was stopped."""
        if runner.suspended or runner.id not in self._live:
            return
        if not runner.journal.finish():
            self._archive.keep(runner.id, runner.identity.token_hash, runner.segments)
        if runner.holder is None and runner.expiry is None:
            self._live.pop(runner.id, None)

    def _expire_later(self, runner: StreamRunner) -> None:
        loop = asyncio.get_running_loop()
        runner.expiry = loop.call_later(self._config.resume_seconds, self._expire, runner)

    def _expire(self, runner: StreamRunner) -> None:
        """Complete what was received, for the transcript's sake: nobody came back."""
        logger.info("event=stream_expired stream=%s", runner.id)
        runner.expiry = None
        runner.outbox.give_up()
        if runner.finished:
            self._live.pop(runner.id, None)
        else:
            runner.finish()

    def _start_expiring(self) -> None:
        self._expiring = asyncio.create_task(self._expire_rows())

    async def _expire_rows(self) -> None:
        for stream_id in list(self._rows):
            runner = await self._bring_back(stream_id)
            if runner is not None and runner.holder is None and runner.expiry is not None:
                runner.expiry.cancel()
                self._expire(runner)


def _row(identity: StreamIdentity, model: str, start: Start, config: StreamConfig) -> StreamRow:
    return StreamRow(
        id=identity.id,
        token_hash=identity.token_hash,
        model=model,
        start=msgspec.msgpack.encode(start),
        config=msgspec.msgpack.encode(config),
    )
