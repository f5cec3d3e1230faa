"""Words the model made up in silence: how they look, and how far to move on past them.

Source: the published implementation's ``hallucination_silence_threshold``, whose constants these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..media.audio import N_FRAMES
from ..whisper.words import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from .segments import Segment, WindowSpan, Word, frame_of, last_end

__all__ = ["HallucinationVerdict", "is_anomalous", "review"]

_PUNCTUATION = PREPEND_PUNCTUATIONS + APPEND_PUNCTUATIONS
_UNLIKELY = 0.15  # probability of a word
_SHORT, _LONG = 0.133, 2.0  # seconds of a word
_SHORT_WEIGHT = 15.0
_WORDS_LOOKED_AT = 8
_ANOMALOUS = 3.0  # score of a segment
_EDGE = 2.0  # seconds at a window's edges that count as silence


def word_anomaly(word: Word) -> float:
    """0 for a word like any other, more for one that is improbable, very short or very long."""
    score = 1.0 if word.probability < _UNLIKELY else 0.0
    duration = word.end - word.start
    if duration < _SHORT:
        score += (_SHORT - duration) * _SHORT_WEIGHT
    if duration > _LONG:
        score += duration - _LONG
    return score


def is_anomalous(segment: Segment | None) -> bool:
    """Whether the first words of a segment look made up, all or several of them."""
    if segment is None or not segment.words:
        return False
    words = [word for word in segment.words if word.word not in _PUNCTUATION][:_WORDS_LOOKED_AT]
    score = sum(word_anomaly(word) for word in words)
    return score >= _ANOMALOUS or score + 0.01 >= len(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class HallucinationVerdict:
    seek: int  # where to go on
    kept: int  # segments that stay, from the first
    again: bool = False  # nothing of the window counts: decode anew from ``seek``


def review(
    segments: Sequence[Segment],
    span: WindowSpan,
    *,
    seek: int,
    ends_alone: bool,
    threshold: float,
    last_speech_timestamp: float,
    content_frames: int,
) -> HallucinationVerdict:
    """Looks for made-up segments next to silence longer than ``threshold`` seconds.

    ``seek`` is where the next window would begin without this.
    """
    seek = _seek_by_last_word(segments, span, seek, ends_alone, threshold)
    first = next((segment for segment in segments if segment.words), None)
    if first is not None and is_anomalous(first):
        gap = first.start - span.start
        if gap > threshold:  # leading silence: begin where the words are
            return HallucinationVerdict(seek=span.seek + frame_of(gap), kept=0, again=True)
    at = _first_hallucination(segments, span, threshold, last_speech_timestamp)
    if at is None:
        return HallucinationVerdict(seek=seek, kept=len(segments))
    segment = segments[at]
    seek = frame_of(max(span.start + 1, segment.start))
    content_seconds = WindowSpan(seek=0, frames=content_frames).seconds
    if content_seconds - segment.end < threshold:
        seek = content_frames
    return HallucinationVerdict(seek=seek, kept=at)


def _seek_by_last_word(
    segments: Sequence[Segment], span: WindowSpan, seek: int, ends_alone: bool, threshold: float
) -> int:
    """After the last word where much of the window is left, else after the window."""
    end = last_end(segments)
    if ends_alone or end is None or end <= span.start:
        return seek
    if _window_end(span) - end > threshold:
        return frame_of(end)
    return span.seek + span.frames


def _first_hallucination(
    segments: Sequence[Segment], span: WindowSpan, threshold: float, last_speech_timestamp: float
) -> int | None:
    """The first made-up segment that has silence, or more of its kind, on both sides."""
    before = last_speech_timestamp
    for at, segment in enumerate(segments):
        if not segment.words:
            continue
        if is_anomalous(segment):
            following = next((one for one in segments[at + 1 :] if one.words), None)
            next_start = span.start + span.seconds
            if following is not None and following.words:
                next_start = following.words[0].start
            silence_before = (
                segment.start - before > threshold
                or segment.start < threshold
                or segment.start - span.start < _EDGE
            )
            silence_after = (
                next_start - segment.end > threshold
                or is_anomalous(following)
                or _window_end(span) - segment.end < _EDGE
            )
            if silence_before and silence_after:
                return at
        before = segment.end
    return None


def _window_end(span: WindowSpan) -> float:
    return WindowSpan(seek=span.seek + N_FRAMES, frames=0).start
