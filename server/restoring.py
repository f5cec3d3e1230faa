"""Streams to the journal and back."""

from __future__ import annotations

from typing import Protocol

import msgspec

from ..streamer.config import StreamConfig
from .commands import decode_command
from .errors import JournalError
from .journal import Journal, StreamRow
from .mailbox import Mailbox
from .stream import LiveStream
from .wire import Start

__all__ = ["Make", "restored", "row_of"]


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
