"""Streams to the journal and back.

Streams that an earlier daemon left open: brought back once their clients return, or given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from ...streamer.config import StreamConfig
from ..errors import JournalError
from ..protocol.messages import Start
from .commands import decode_command
from .journal import Journal, StreamRow
from .outbox import Mailbox
from .stream import LiveStream, where

__all__ = ["Dormant", "Make", "restored", "row_of"]


class Make(Protocol):
    """Makes a stream that has heard nothing yet."""

    def __call__(
        self,
        stream_id: str,
        token_hash: bytes,
        start: Start,
        config: StreamConfig,
        mailbox: Mailbox,
        /,
    ) -> LiveStream: ...


def row_of(stream: LiveStream, model: str) -> StreamRow:
    """What the journal keeps of a new stream besides its commands."""
    return StreamRow(
        id=stream.id,
        token_hash=stream.token_hash,
        model=model,
        start=msgspec.msgpack.encode(stream.start),
        config=msgspec.msgpack.encode(stream.config),
        touched=0.0,
        done=0,
    )


def restored(row: StreamRow, journal: Journal, model: str, make: Make) -> LiveStream:
    """Return the stream as it was, not running yet. Call it in a thread: an hour takes a moment.

    Raises JournalError where the journal is damaged, or does not fit this daemon.
    """
    if row.model != model:
        raise JournalError(f"the stream was begun with the model {row.model}")
    try:
        start = msgspec.msgpack.decode(row.start, type=Start)
        config = msgspec.msgpack.decode(row.config, type=StreamConfig)
    except (msgspec.DecodeError, ValueError):
        raise JournalError("the journal holds options that cannot be used") from None
    mailbox = Mailbox()
    mailbox.keep = True
    stream = make(row.id, row.token_hash, start, config, mailbox)
    try:
        for _, seq, body in journal.commands(row.id):
            stream.replay(decode_command(body), seq)
            stream.journal.recorded(len(body))
        mailbox.seq = max(mailbox.seq, row.sent)
    except Exception as error:
        stream.close()
        if isinstance(error, JournalError):
            raise
        name = type(error).__name__
        raise JournalError(f"the journal does not fit this version ({name})") from error
    return stream


logger = logging.getLogger(__name__)


class Dormant:
    """What the journal holds and nobody has asked for yet; nothing where there is no journal.

    Args:
        make: an empty stream.
        wake: is given a stream as it was, for it to run.
        expire: is given a stream that runs, and that nobody came back for.
    """

    def __init__(
        self,
        journal: Journal | None,
        model: str,
        make: Make,
        wake: Callable[[LiveStream], None],
        expire: Callable[[LiveStream], None],
    ) -> None:
        self._journal = journal
        self._model = model
        self._make = make
        self._wake = wake
        self._expire = expire
        self._rows: dict[str, StreamRow] = {}
        self._restoring: dict[str, asyncio.Task[LiveStream | None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    def look_up(self, owns: Callable[[str], bool], seconds: float) -> None:
        """Find the open streams whose ids this process ``owns``; in so many seconds they expire.

        Raises JournalError.
        """
        if self._journal is None:
            return
        rows = [row for row in self._journal.streams() if owns(row.id)]
        self._rows = {row.id: row for row in rows if not row.done}
        if self._rows:
            logger.info("event=streams_recovered streams=%d", len(self._rows))
            self._timer = asyncio.get_running_loop().call_later(seconds, self._expire_soon)

    def forget(self, stream_id: str) -> None:
        self._rows.pop(stream_id, None)

    def close(self) -> None:
        """Leave what is still here to the next daemon."""
        if self._timer is not None:
            self._timer.cancel()
        if self._expiring is not None:
            self._expiring.cancel()

    async def restore(self, stream_id: str) -> LiveStream | None:
        """Bring a stream back; None if it is not there or cannot be."""
        if stream_id not in self._restoring:
            row = self._rows.pop(stream_id, None)
            if row is None:
                return None
            self._restoring[stream_id] = asyncio.create_task(self._bring_back(row))
        try:
            return await asyncio.shield(self._restoring[stream_id])
        finally:
            self._restoring.pop(stream_id, None)

    async def _bring_back(self, row: StreamRow) -> LiveStream | None:
        assert self._journal is not None
        try:
            stream = await asyncio.to_thread(restored, row, self._journal, self._model, self._make)
        except JournalError as error:
            logger.error("event=restore_failed stream=%s at=%s", row.id, where(error))
            self._journal.finish_stream(row.id)
            return None
        self._wake(stream)
        logger.info("event=stream_restored stream=%s", row.id)
        return stream

    def _expire_soon(self) -> None:
        self._expiring = asyncio.create_task(self._expire_all())

    async def _expire_all(self) -> None:
        for stream_id in list(self._rows):
            stream = await self.restore(stream_id)
            if stream is not None and stream.holder is None:
                self._expire(stream)
