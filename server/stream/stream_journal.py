"""One stream's part of the journal: its commands on their way there, and back into a stream."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ...streamer.commands import Command
from ..errors import JournalError
from ..protocol.messages import Partial, Segment, ServerMessage
from .journal import CommandRow, Journal
from .stream import Stream

__all__ = ["Replayed", "StreamJournal", "decode_command", "encode_command"]


class Replayed(NamedTuple):
    """One command's part of what a stream said before. Partials that were replaced are empty."""

    seq: int  # of the last message before it
    seconds_in: float  # audio received until then
    messages: list[ServerMessage]


class StreamJournal:
    """One stream's part of the journal; does nothing where there is none.

    Args:
        limit: bytes of commands, above which the stream goes on without a journal.
    """

    def __init__(self, journal: Journal | None, stream_id: str, limit: float) -> None:
        self._journal = journal
        self._stream_id = stream_id
        self._limit = limit
        self._size = 0
        self._sent = 0  # messages up to here may have been sent
        self.number = 0  # of the next command

    @property
    def active(self) -> bool:
        """True while the stream would survive the end of the daemon."""
        return self._journal is not None

    def record(self, command: Command, now: float, seq: int) -> bool:
        """Write down a command, before the messages that come of it are numbered.

        Args:
            now: the time at which it was applied.
            seq: number of the last message.

        Returns:
            False if the stream has just become too long, and goes on without a journal.
        """
        if self._journal is None:
            return True
        body = encode_command(command)
        self._journal.command(self._stream_id, CommandRow(self.number, seq, now, body))
        self._count(body)
        if self._size <= self._limit:
            return True
        self.finish()
        self._journal = None
        return False

    def keep(self, segment: Segment) -> None:
        """Write down a closed segment."""
        if self._journal is not None:
            body = msgspec.msgpack.encode(segment)
            self._journal.segment(self._stream_id, segment.id, body)

    def finish(self) -> bool:
        """Drop the commands: the stream is complete. False: its transcript is not in a journal."""
        if self._journal is None:
            return False
        self._journal.finish_stream(self._stream_id)
        return True

    async def throttle(self) -> None:
        """Wait while the journal is far behind."""
        if self._journal is not None and self._journal.crowded:
            await self._journal.durable(self._stream_id)

    async def durable(self, seq: int) -> None:
        """Wait until all is safe that messages up to ``seq`` come of; raises JournalError if it is not."""
        if self._journal is not None:
            if seq > self._sent:
                self._sent = seq
                self._journal.mark_sent(self._stream_id, seq)
            await self._journal.durable(self._stream_id)

    def replay(self, stream: Stream) -> list[Replayed]:
        """Apply all commands of an earlier daemon to ``stream``, which has heard nothing yet.

        An hour takes a moment: call it in a thread, which owns ``stream`` and this object meanwhile.
        Nothing else is touched. Raises JournalError where the journal is damaged, or does not fit this
        daemon.
        """
        if self._journal is None:
            return []
        said: list[Replayed] = []
        shown: tuple[list[ServerMessage], int] | None = None  # place of the newest partial
        try:
            for row in self._journal.commands(self._stream_id):
                messages = stream.apply(decode_command(row.body), row.now)
                for index, message in enumerate(messages):
                    if isinstance(message, Partial):
                        if shown is not None:  # it was replaced: only its number counts
                            shown[0][shown[1]] = _REPLACED
                        shown = messages, index
                said.append(Replayed(row.seq, stream.seconds_in, messages))
                self._count(row.body)
        except JournalError:
            raise
        except Exception as error:
            name = type(error).__name__
            raise JournalError(f"the journal does not fit this version ({name})") from error
        return said

    def _count(self, body: bytes) -> None:
        self.number += 1
        self._size += len(body)


_REPLACED = Partial(text="", words=())
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    """Return a command as the journal keeps it."""
    return _encoder.encode(command)


def decode_command(body: bytes) -> Command:
    """Return the command that ``body`` holds; raises JournalError where it holds none."""
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, ValueError) as error:
        raise JournalError(f"the journal holds no command in one place ({error})") from None
