"""Segments of a transcript, and how the tokens of one window are cut into them. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..media.audio import FRAMES_PER_SECOND, HOP_LENGTH, SAMPLE_RATE

__all__ = [
    "SECONDS_PER_TOKEN",
    "WindowSegments",
    "SegmentTokens",
    "Segment",
    "WindowSpan",
    "Transcript",
    "Word",
    "cut_window",
    "frame_of",
    "last_end",
]

_FRAMES_PER_TOKEN = 2  # mel frames for each step of a timestamp
SECONDS_PER_TOKEN = _FRAMES_PER_TOKEN * HOP_LENGTH / SAMPLE_RATE  # 0.02


@dataclass(slots=True, kw_only=True)
class Word:
    word: str  # with its leading space and its punctuation
    start: float
    end: float
    probability: float


@dataclass(slots=True, kw_only=True)
class Segment:
    """One line of a transcript. ``start`` and ``end`` are seconds in the file."""

    seek: int  # mel frame at which its window begins
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float
    words: list[Word] | None = None  # None: not asked for
    id: int = field(default=0)

    def clear(self) -> None:
        """Leaves nothing but a place in the transcript."""
        self.text, self.tokens, self.words = "", [], []

    def as_dict(self) -> dict[str, Any]:
        """The keys, and their order, of the reference."""
        result: dict[str, Any] = {
            "id": self.id,
            "seek": self.seek,
            "start": self.start,
            "end": self.end,
            "text": self.text,
            "tokens": self.tokens,
            "temperature": self.temperature,
            "avg_logprob": self.avg_logprob,
            "compression_ratio": self.compression_ratio,
            "no_speech_prob": self.no_speech_prob,
        }
        if self.words is not None:
            result["words"] = [
                {
                    "word": word.word,
                    "start": word.start,
                    "end": word.end,
                    "probability": word.probability,
                }
                for word in self.words
            ]
        return result


def last_end(segments: Sequence[Segment]) -> float | None:
    """End of the last word, or of the last segment where no word is timed; None without segments."""
    for segment in reversed(segments):
        if segment.words:
            return segment.words[-1].end
    return segments[-1].end if segments else None


class Transcript:
    """The segments found so far. ``on_segment`` is given each of them, as it was found."""

    def __init__(self, on_segment: Callable[[Segment], None] | None = None) -> None:
        self.segments: list[Segment] = []
        self._on_segment = on_segment

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    def add(self, segments: Sequence[Segment]) -> None:
        """Numbers and keeps ``segments``; those without length or text keep only their place."""
        for segment in segments:
            segment.id = len(self.segments)
            self.segments.append(segment)
            if self._on_segment is not None:
                self._on_segment(segment)
            if segment.start == segment.end or not segment.text.strip():
                segment.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSpan:
    """The mel frames of one window: ``seek`` on, ``frames`` of them (3000 at most)."""

    seek: int
    frames: int

    @property
    def start(self) -> float:
        return float(self.seek * HOP_LENGTH / SAMPLE_RATE)

    @property
    def seconds(self) -> float:
        return self.frames * HOP_LENGTH / SAMPLE_RATE


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentTokens:
    tokens: list[int]  # with the timestamps around them
    start: float  # seconds in the file
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSegments:
    pieces: list[SegmentTokens]
    seek: int  # where the next window begins
    ends_alone: bool  # the last timestamp has no pair: nothing is said after it


def cut_window(tokens: Sequence[int], span: WindowSpan, timestamp_begin: int) -> WindowSegments:
    """Cuts the tokens of a window where one segment's end meets the next one's start.

    With such pairs, the next window begins at the last of them, unless the text ends in a lone
    timestamp. Without, all is one segment, and the next window follows this one.
    """
    is_timestamp = [token >= timestamp_begin for token in tokens]
    ends_alone = is_timestamp[-2:] == [False, True]
    cuts = [at for at in range(1, len(tokens)) if is_timestamp[at - 1] and is_timestamp[at]]
    after = span.seek + span.frames
    if not cuts:
        whole = _whole(tokens, is_timestamp, span, timestamp_begin)
        return WindowSegments(pieces=[whole], seek=after, ends_alone=ends_alone)
    if ends_alone:
        cuts.append(len(tokens))
    pieces = [
        _between_timestamps(tokens[begin:end], span, timestamp_begin)
        for begin, end in zip([0, *cuts], cuts, strict=False)
    ]
    last = cuts[-1]
    if ends_alone:
        return WindowSegments(pieces=pieces, seek=after, ends_alone=True)
    position = tokens[last - 1] - timestamp_begin
    seek = span.seek + position * _FRAMES_PER_TOKEN
    return WindowSegments(pieces=pieces, seek=seek, ends_alone=False)


def _between_timestamps(
    tokens: Sequence[int], span: WindowSpan, timestamp_begin: int
) -> SegmentTokens:
    first, last = tokens[0] - timestamp_begin, tokens[-1] - timestamp_begin
    return SegmentTokens(
        tokens=list(tokens),
        start=span.start + first * SECONDS_PER_TOKEN,
        end=span.start + last * SECONDS_PER_TOKEN,
    )


def _whole(
    tokens: Sequence[int], is_timestamp: Sequence[bool], span: WindowSpan, timestamp_begin: int
) -> SegmentTokens:
    """All of the window, up to its last timestamp where there is one above zero."""
    timestamps = [token for token, yes in zip(tokens, is_timestamp, strict=True) if yes]
    seconds = span.seconds
    if timestamps and timestamps[-1] != timestamp_begin:
        seconds = (timestamps[-1] - timestamp_begin) * SECONDS_PER_TOKEN
    return SegmentTokens(tokens=list(tokens), start=span.start, end=span.start + seconds)


def frame_of(seconds: float) -> int:
    """The mel frame nearest to a time in the file."""
    return round(seconds * FRAMES_PER_SECOND)
