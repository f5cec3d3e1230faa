"""Messages of one or several sessions as one stream, whose times, numbers and words go on. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ...server.protocol import messages as wire

__all__ = ["Origin", "SessionMerger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The place in the stream where a session begins, in three units."""

    seconds: float = 0.0
    samples: int = 0
    bytes: int = 0


class SessionMerger:
    """Rewrites the messages of each session into those of one stream.

    After a restart, words that were committed before are dropped, however often they come again.
    """

    def __init__(self) -> None:
        self._origin = Origin()
        self._floor = -1.0  # seconds; words before it were committed in an earlier session
        self._end = 0.0  # of the last committed word
        self._open: list[wire.Word] = []  # committed, their segment not closed
        self._restarted = False
        self._segments = 0
        self._words = 0

    def restart(self, origin: Origin) -> None:
        """Go on with another session, which begins at ``origin``."""
        self._restarted = True
        if self._words:
            self._floor = self._end
        self._origin = origin

    def merge(self, message: wire.ServerMessage) -> list[wire.ServerMessage]:
        """Return a message of the present session as one of the stream; nothing if it tells nothing new."""
        match message:
            case wire.Partial():
                words = self._new_words(message.words)
                return [msgspec.structs.replace(message, words=words, text=_text(words))]
            case wire.Commit():
                words = self._new_words(message.words)
                if not words and message.words:
                    return []
                self._end = words[-1].end if words else self._end
                self._words += len(words)
                self._open += words
                return [msgspec.structs.replace(message, words=words, text=_text(words))]
            case wire.Segment():
                return self._renumber(message)
            case wire.Done():
                return [msgspec.structs.replace(self._shift(message), words=self._words)]
            case _:
                return [self._shift(message)] if self._restarted else [message]

    def _renumber(self, segment: wire.Segment) -> list[wire.ServerMessage]:
        """Return the segment with the stream's number, and with the words that are still open."""
        if not self._restarted:
            self._segments = segment.id
            del self._open[: len(segment.words)]
            return [segment]
        end = self._stream_time(segment.end)
        count = sum(_middle(word) <= end for word in self._open)
        words, self._open = tuple(self._open[:count]), self._open[count:]
        if not words:
            return []
        self._segments += 1
        whole = msgspec.structs.replace(
            segment,
            id=self._segments,
            words=words,
            text=_text(words),
            start=words[0].start,
            end=max(end, words[-1].end),
        )
        return [whole]

    def _new_words(self, words: Sequence[wire.Word]) -> tuple[wire.Word, ...]:
        """Return the words at their times in the stream, without those that were committed before."""
        if not self._restarted:
            return tuple(words)
        moved = (
            msgspec.structs.replace(
                word, start=self._stream_time(word.start), end=self._stream_time(word.end)
            )
            for word in words
        )
        return tuple(
            msgspec.structs.replace(word, start=max(word.start, self._floor))
            for word in moved
            if _middle(word) > self._floor
        )

    def _shift(self, message: wire.ServerMessage) -> wire.ServerMessage:
        changed: dict[str, float] = {
            name: self._stream_time(getattr(message, name))
            for name in ("start", "end", "time", "duration")
            if hasattr(message, name)
        }
        if isinstance(message, (wire.Ack, wire.Done)):
            changed["samples"] = message.samples + self._origin.samples
        if isinstance(message, wire.Ack):
            changed["bytes"] = message.bytes + self._origin.bytes
        return msgspec.structs.replace(message, **changed)

    def _stream_time(self, seconds: float) -> float:
        return round(seconds + self._origin.seconds, 3)


def _text(words: Sequence[wire.Word]) -> str:
    return "".join(word.text for word in words)


def _middle(word: wire.Word) -> float:
    return (word.start + word.end) / 2
