"""Transcripts of streams that have ended, for as long as they may be fetched."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from ..config import ServerConfig
from .journal import Journal

__all__ = ["Archive", "ArchivedTranscript"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTranscript:
    """The closed segments of a stream, encoded with msgpack. ``until``: a time of the archive's clock."""

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
        self._kept: OrderedDict[str, ArchivedTranscript] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """Transcripts in memory."""
        return len(self._kept)

    def keep(self, stream_id: str, token_hash: bytes, segments: list[bytes]) -> None:
        """Keep a transcript in memory."""
        if self._seconds > 0:
            until = self._clock() + self._seconds
            self._kept[stream_id] = ArchivedTranscript(
                token_hash=token_hash, segments=segments, until=until
            )
        self.sweep()

    def find(self, stream_id: str) -> ArchivedTranscript | None:
        """Return a transcript that is still kept; raises JournalError if that cannot be read."""
        self.sweep()
        if stream_id in self._kept:
            return self._kept[stream_id]
        row = None if self._journal is None else self._journal.stream(stream_id)
        if self._journal is None or row is None:
            return None
        segments = self._journal.segments(stream_id)
        return ArchivedTranscript(token_hash=row.token_hash, segments=segments)

    def forget(self, stream_id: str) -> None:
        """Delete a transcript, and all else that the journal has of its stream."""
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
