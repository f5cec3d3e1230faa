"""The layout of subtitles: words of a transcript are put into lines, and lines into cues."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import DecodingOptionsError
from ..media.captions import Cue, milliseconds

__all__ = ["SubtitleOptions", "subtitle_cues"]

_LONG_PAUSE = 3.0  # seconds; a cue of fixed size never spans a longer one
_UNBOUNDED = 1000  # characters in a line or words in a cue, where no limit is given

Word = Mapping[str, Any]  # "word" with its leading space, "start" and "end" in seconds
Segment = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtitleOptions:
    """Options of the layout of subtitles. They matter only for transcripts with word times."""

    max_line_width: int | None = None  # characters
    max_line_count: int | None = None  # lines in a cue; counts with max_line_width only
    max_words_per_line: int | None = None
    highlight_words: bool = False  # one cue a word, with that word underlined

    def __post_init__(self) -> None:
        for name in ("max_line_width", "max_line_count", "max_words_per_line"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise DecodingOptionsError(f"{name} must be at least 1, not {value}.")

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> SubtitleOptions:
        """Read options by name.

        Raises:
            DecodingOptionsError: when a name is unknown or a value below 1.
        """
        known = [entry.name for entry in fields(cls)]
        for name in options:
            if name not in known:
                raise DecodingOptionsError(
                    f"{name} is not a subtitle option: use {', '.join(known)}."
                )
        return cls(**options)

    @property
    def keeps_segments(self) -> bool:
        """True when every segment begins a new cue; False when cues are filled to a fixed size."""
        return self.max_line_width is None or self.max_line_count is None


def subtitle_cues(segments: Sequence[Segment], options: SubtitleOptions) -> Iterator[Cue]:
    """Yield the cues of a transcript: one a segment, or laid out by ``options`` from its words."""
    if not segments or "words" not in segments[0]:
        for segment in segments:
            # An arrow would end the cue's time line.
            text = segment["text"].strip().replace("-->", "->")
            yield _cue(segment["start"], segment["end"], text)
        return
    for placed in _lay_out(segments, options):
        if options.highlight_words:
            yield from _highlighted(placed)
        else:
            text = "".join(word.text for word in placed)
            yield _cue(placed[0].start, placed[-1].end, text)


def _cue(start: float, end: float, text: str) -> Cue:
    return Cue(start_ms=milliseconds(start), end_ms=milliseconds(end), text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlacedWord:
    text: str  # with the space or line break before it
    start: float
    end: float


@dataclass(slots=True, kw_only=True)
class _Layout:
    """The cue being filled. Each word continues its line, begins a line, or begins the next cue."""

    options: SubtitleOptions
    last_start: float  # of the word before, in seconds
    words: list[_PlacedWord] = field(default_factory=list)
    line_length: int = 0  # characters in the current line
    line_count: int = 1

    def place(self, word: Word, *, starts_group: bool) -> list[_PlacedWord]:
        """Take the next word; return the words of a cue that it completes, or none."""
        options = self.options
        paused = not options.keeps_segments and word["start"] - self.last_start > _LONG_PAUSE
        new_group = starts_group and options.keeps_segments and bool(self.words)
        self.last_start = word["start"]
        text = word["word"]
        width = options.max_line_width or _UNBOUNDED
        has_room = self.line_length + len(text) <= width
        if self.line_length > 0 and has_room and not paused and not new_group:
            self.line_length += len(text)
            self._append(word, text)
            return []
        text = text.strip()
        limit = options.max_line_count
        full = limit is not None and (paused or self.line_count >= limit)
        done: list[_PlacedWord] = []
        if new_group or (full and self.words):
            done = self.take()
        elif self.line_length > 0:
            self.line_count += 1
            self._append(word, "\n" + text)
            self.line_length = len(text)
            return []
        self.line_length = len(text)
        self._append(word, text)
        return done

    def take(self) -> list[_PlacedWord]:
        """Return the words of the cue being filled, and begin the next."""
        done, self.words = self.words, []
        self.line_count = 1
        return done

    def _append(self, word: Word, text: str) -> None:
        self.words.append(_PlacedWord(text=text, start=word["start"], end=word["end"]))


def _lay_out(segments: Sequence[Segment], options: SubtitleOptions) -> Iterator[list[_PlacedWord]]:
    group = options.max_words_per_line or _UNBOUNDED
    first = next((word["start"] for segment in segments for word in segment["words"]), 0.0)
    layout = _Layout(options=options, last_start=first)
    for segment in segments:
        for index, word in enumerate(segment["words"]):
            if done := layout.place(word, starts_group=index % group == 0):
                yield done
    if rest := layout.take():
        yield rest


def _highlighted(words: Sequence[_PlacedWord]) -> Iterator[Cue]:
    """Yield one cue a word with that word underlined, and plain cues in the pauses between."""
    plain = "".join(word.text for word in words)
    shown_until = milliseconds(words[0].start)
    for index, word in enumerate(words):
        start, end = milliseconds(word.start), milliseconds(word.end)
        if shown_until != start:
            yield Cue(start_ms=shown_until, end_ms=start, text=plain)
        before = "".join(other.text for other in words[:index])
        after = "".join(other.text for other in words[index + 1 :])
        yield Cue(start_ms=start, end_ms=end, text=before + _underlined(word.text) + after)
        shown_until = end


def _underlined(text: str) -> str:
    return re.sub(r"^(\s*)(.*)$", r"\1<u>\2</u>", text)
