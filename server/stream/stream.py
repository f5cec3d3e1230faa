"""One stream, for as long as it lives: it outlasts the connections that serve it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import traceback
from collections.abc import Callable
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from ... import WhisperStreamError
from ...streamer.config import StreamConfig
from ..engine import Engine
from ..metrics import Metrics
from ..protocol.errors import CloseCode, ErrorCode, WarningCode
from ..protocol.messages import Ack, Error, Resumed, Segment, Snapshot, Start, Warning
from .audio_checks import AudioMonitor
from .commands import Command, Configure, encode_command
from .journal import Journal
from .outbox import Mailbox
from .recording import Recording
from .runner import StreamBridge, configured, held, say

__all__ = ["Holder", "LiveStream", "StreamJournal", "hash_token", "token_fits", "where"]

logger = logging.getLogger(__name__)


class Holder(Protocol):
    """The connection that serves a stream."""

    async def supersede(self) -> None:
        """Let go of the stream: another connection goes on with it."""


class StreamJournal:
    """One stream's part of the journal; does nothing where there is none.

    Args:
        limit: bytes of commands, above which the stream goes on without a journal, and is told.
    """

    def __init__(
        self, journal: Journal | None, stream_id: str, mailbox: Mailbox, limit: float
    ) -> None:
        self._journal = journal
        self._limit = limit
        self._size = 0
        self._stream_id = stream_id
        self._mailbox = mailbox
        self._sent = 0  # messages up to here may have been sent
        self.number = 0  # of the next command

    @property
    def active(self) -> bool:
        return self._journal is not None

    def record(self, command: Command) -> None:
        """Write down a command, before the messages that come of it are numbered."""
        if self._journal is not None:
            body = encode_command(command)
            self._journal.command(self._stream_id, self.number, self._mailbox.seq, body)
            self.recorded(len(body))

    def recorded(self, size: int) -> None:
        """One more command is in the journal, now or since an earlier daemon."""
        self.number += 1
        self._size += size
        if self._journal is not None and self._size > self._limit:
            self._journal.finish_stream(self._stream_id)
            self._journal = None
            text = "the stream is too long for the journal: it would not survive a restart any more"
            self._mailbox.put(Warning(code=WarningCode.JOURNAL_FULL, message=text))

    def segment(self, segment: Segment) -> None:
        if self._journal is not None:
            body = msgspec.msgpack.encode(segment)
            self._journal.segment(self._stream_id, segment.id, body)

    async def throttle(self) -> None:
        """Wait while the journal is far behind."""
        if self._journal is not None and self._journal.crowded:
            await self._journal.durable(self._stream_id)

    async def durable(self) -> None:
        """Wait until what was recorded is safe, and messages may be sent; raises JournalError if not."""
        if self._journal is not None:
            if self._mailbox.seq > self._sent:
                self._sent = self._mailbox.seq
                self._journal.sent(self._stream_id, self._sent)
            await self._journal.durable(self._stream_id)


class LiveStream:
    """A session with its mailbox and the task that runs its jobs.

    Attributes:
        holder: the connection that serves it now.
        expiry: ends the stream if nobody resumes it; set while there is no holder.
        suspended: the daemon stops, and the stream is to go on in the next one.
        hear: is shown all audio at 16 kHz; for the daemon's /debug page.
    """

    def __init__(
        self,
        *,
        stream_id: str,
        token_hash: bytes,
        start: Start,
        config: StreamConfig,
        recording: Recording,
        mailbox: Mailbox,
        journal: StreamJournal,
        on_end: Callable[[LiveStream], None],
    ) -> None:
        self.id = stream_id
        self.token_hash = token_hash
        self.start = start
        self.config = config
        self.mailbox = mailbox
        self.journal = journal
        self.holder: Holder | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self.suspended = False
        self.hear: Callable[[NDArray[np.float32]], None] | None = None
        # Closed segments, encoded: the transcript so far.
        self.segments: list[bytes] = []
        # None once the stream has ended: its audio is not needed any more.
        self._recording: Recording | None = recording
        self._held = Ack(samples=0)
        self._seconds = 0.0
        self._on_end = on_end
        self._monitor = AudioMonitor()
        self._bridge: StreamBridge | None = None
        self._task: asyncio.Task[None] | None = None

    def run(self, engine: Engine, metrics: Metrics, others: Callable[[], int]) -> None:
        """Begin, or go on."""
        recording = self._recording
        assert recording is not None
        recording.record = self.journal.record
        recording.listen = self._listen
        self._bridge = StreamBridge(
            recording,
            engine,
            self.mailbox,
            self.id,
            self._keep,
            self.journal.throttle,
            metrics,
            others,
        )
        self._task = asyncio.create_task(self._pump(self._bridge))

    def replay(self, command: Command, seq: int) -> None:
        """Carry out a command of the journal, before ``run``; raises JournalError."""
        recording = self._recording
        assert recording is not None
        self.mailbox.seq = max(self.mailbox.seq, seq)
        say(recording.replay(command), recording, self.mailbox, self._keep_encoded)
        if isinstance(command, Configure):
            self.config = command.config
            self.mailbox.put(configured(self.config, recording), lasting=True)

    @property
    def finished(self) -> bool:
        """Whether the stream has ended, well or not."""
        return self._task is not None and self._task.done()

    @property
    def ended(self) -> bool:
        """Whether no more audio is expected."""
        return self._recording is None or self._recording.ended

    @property
    def held(self) -> Ack:
        """What the server holds of what the client sent."""
        return self._held if self._recording is None else held(self._recording)

    @property
    def seconds_in(self) -> float:
        """Audio received, in seconds."""
        if self._recording is not None:
            self._seconds = self._recording.seconds_in
        return self._seconds

    def knows(self, token: str) -> bool:
        """Whether ``token`` is the stream's; takes the same time for every wrong one."""
        return token_fits(token, self.token_hash)

    @property
    def reader_key(self) -> str:
        """Lets others read along, and nothing else; the same after a restart."""
        return hmac.new(self.token_hash, b"watch", "sha256").hexdigest()[:32]

    def reads_with(self, key: str) -> bool:
        """Whether ``key`` is the reader's key; takes the same time for every wrong one."""
        return hmac.compare_digest(key.encode(), self.reader_key.encode())

    @property
    def watch_path(self) -> str:
        return f"/v1/sessions/{self.id}/watch?key={self.reader_key}"

    def snapshot(self) -> Snapshot:
        """What a reader who joins now has missed."""
        closed = tuple(msgspec.msgpack.decode(body, type=Segment) for body in self.segments)
        return self.mailbox.snapshot(closed)

    def resumed(self) -> Resumed:
        """The answer to ``resume``."""
        ack = self.held
        return Resumed(session=self.id, samples=ack.samples, bytes=ack.bytes, controls=ack.controls)

    async def push(self, data: bytes) -> None:
        if self._bridge is not None:
            await self._bridge.push(data)

    def flush(self, flush_id: str) -> None:
        if self._bridge is not None:
            self._bridge.flush(flush_id)

    def configure(self, config: StreamConfig) -> None:
        if self._bridge is not None:
            self.config = config
            self._bridge.configure(config)

    def finish(self) -> None:
        if self._bridge is not None and not self.ended:
            self._bridge.finish()

    async def abort(self) -> None:
        """Stop at once, wherever it stands."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def close(self) -> None:
        """Let go of the audio."""
        if self._recording is not None:
            self._held, self._seconds = self.held, self.seconds_in
            self._recording.close()
        self._bridge = self._recording = None

    async def _pump(self, bridge: StreamBridge) -> None:
        try:
            await bridge.pump()
            self.mailbox.close(CloseCode.NORMAL, "done")
        except WhisperStreamError as error:
            self._fail(error, str(error))
        except Exception as error:  # noqa: BLE001 - any bug ends this stream, and no other
            self._fail(error, "something went wrong in the daemon; its log says where")
        finally:
            bridge.close()
            self.close()
            self._on_end(self)

    def _fail(self, error: Exception, text: str) -> None:
        logger.error(
            "event=stream_failed stream=%s task=pump error=%s at=%s",
            *(self.id, type(error).__name__, where(error)),
        )
        self.mailbox.put(Error(code=ErrorCode.INTERNAL, message=text), lasting=True)
        self.mailbox.close(CloseCode.INTERNAL_ERROR, ErrorCode.INTERNAL)

    def _listen(self, samples: NDArray[np.float32]) -> None:
        if self.hear is not None:
            self.hear(samples)
        for found in self._monitor.listen(samples):
            self.mailbox.put(Warning(code=found.code, message=found.message))

    def _keep(self, segment: Segment) -> None:
        self._keep_encoded(segment)
        self.journal.segment(segment)

    def _keep_encoded(self, segment: Segment) -> None:
        self.segments.append(msgspec.msgpack.encode(segment))


def hash_token(token: str) -> bytes:
    """What is stored of a token: whoever reads the journal cannot act for the client."""
    return hashlib.sha256(token.encode()).digest()


def token_fits(token: str, token_hash: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hash_token(token), token_hash)


def where(error: Exception) -> str:
    """Where ``error`` was raised. Its own text is not for the log: it may quote what was said."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return ",".join(f"{frame.name}:{frame.lineno}" for frame in frames)
