"""Final transcripts as SubRip, WebVTT, plain text or JSON. Standard library only.

Cues follow common subtitle practice: at most two lines of 42 characters and six seconds each. Times
are whole milliseconds, in order, and no two cues overlap.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from ... import WhisperStreamError
from ...model.media.captions import Cue, cue_block, milliseconds

if TYPE_CHECKING:
    from .messages import Segment, Word

__all__ = ["FORMATS", "CaptionFormat", "cues", "render"]

CaptionFormat = Literal["srt", "vtt", "txt", "json"]
FORMATS: tuple[CaptionFormat, ...] = get_args(CaptionFormat)

LINE_CHARS = 42
CUE_LINES = 2
CUE_MS = 6_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """A word, or a part of one that is too long for a line."""

    text: str
    start_ms: int
    end_ms: int


def render(segments: Sequence[Segment], format: CaptionFormat) -> str:
    """Return the transcript as one text, ending in a newline unless it is empty.

    Raises:
        WhisperStreamError: the format is unknown.
    """
    if format == "srt":
        return _srt(segments)
    if format == "vtt":
        return _vtt(segments)
    if format == "txt":
        return "".join(f"{_clean(segment.text)}\n" for segment in segments if _clean(segment.text))
    if format == "json":
        return _json(segments)
    raise WhisperStreamError(f"unknown caption format {format!r}; use one of {', '.join(FORMATS)}")


def cues(segments: Iterable[Segment]) -> list[Cue]:
    """Return the cues of all segments. No cue spans two segments."""
    made: list[Cue] = []
    for segment in segments:
        held: list[_Piece] = []
        for piece in _pieces(segment.words):
            if held and not _fits(held, piece):
                made.append(_cue(held, made))
                held = []
            held.append(piece)
        if held:
            made.append(_cue(held, made))
    return [cue for cue in made if cue.text]


def _pieces(words: Iterable[Word]) -> Iterable[_Piece]:
    """Yield the words; those longer than a line in parts that share the word's time evenly."""
    for word in words:
        text = " ".join(word.text.split())
        space = " " if word.text[:1].isspace() else ""
        start, end = milliseconds(word.start), milliseconds(word.end)
        parts = [text[at : at + LINE_CHARS] for at in range(0, len(text), LINE_CHARS)]
        for index, part in enumerate(parts):
            yield _Piece(
                text=(space if index == 0 else "") + part,
                start_ms=start + (end - start) * index // len(parts),
                end_ms=start + (end - start) * (index + 1) // len(parts),
            )


def _fits(held: list[_Piece], piece: _Piece) -> bool:
    if piece.end_ms - held[0].start_ms > CUE_MS:
        return False
    return len(_wrap([*held, piece])) <= CUE_LINES


def _wrap(pieces: Iterable[_Piece]) -> list[str]:
    """Fill lines greedily; a line breaks only where a piece begins."""
    lines: list[str] = []
    for piece in pieces:
        if lines and len(lines[-1]) + len(piece.text) <= LINE_CHARS:
            lines[-1] += piece.text
        else:
            lines.append(piece.text.lstrip())
    return [line for line in lines if line]


def _cue(pieces: list[_Piece], before: list[Cue]) -> Cue:
    earliest = before[-1].end_ms if before else 0
    start = max(pieces[0].start_ms, earliest)
    end = min(max(pieces[-1].end_ms, start + 1), start + CUE_MS)
    return Cue(start_ms=start, end_ms=end, text="\n".join(_wrap(pieces)))


def _srt(segments: Iterable[Segment]) -> str:
    blocks = [
        cue_block(cue, number=number, decimal_marker=",")
        for number, cue in enumerate(cues(segments), start=1)
    ]
    return "\n".join(blocks)


def _vtt(segments: Iterable[Segment]) -> str:
    blocks = [cue_block(replace(cue, text=_escape(cue.text))) for cue in cues(segments)]
    return "\n".join(["WEBVTT\n", *blocks])


def _json(segments: Sequence[Segment]) -> str:
    names: tuple[str, ...] = (
        "id",
        "text",
        "start",
        "end",
        "language",
        "avg_logprob",
        "no_speech_prob",
    )
    names += ("compression_ratio", "temperature")
    word_names = ("text", "start", "end", "probability")
    document = {
        "text": "".join(segment.text for segment in segments).strip(),
        "segments": [
            {name: getattr(segment, name) for name in names}
            | {
                "words": [
                    {name: getattr(word, name) for name in word_names} for word in segment.words
                ]
            }
            for segment in segments
        ],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _escape(text: str) -> str:
    """Return ``text`` for WebVTT, which reads ``&`` and ``<`` as markup; ``-->`` would end the cue's text."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clean(text: str) -> str:
    return " ".join(text.split())
