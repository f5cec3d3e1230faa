"""Word times: the decoder's attention over the audio, warped onto the text, then made plausible.

Source: the word timestamps of the published implementation, whose constants these are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from ..align import alignment_cost, token_times
from ..decoding.inference import EncodedAudio
from ..whisper.network import Whisper
from ..whisper.tokenizer import Tokenizer
from ..whisper.words import (
    APPEND_PUNCTUATIONS,
    PREPEND_PUNCTUATIONS,
    merge_punctuations,
    split_to_word_tokens,
)
from .segments import Segment, Word

__all__ = ["WordTiming", "add_word_timestamps", "find_alignment"]

_SENTENCE_ENDS = ".。!！?？"
_LONGEST_MEDIAN = 0.7  # seconds; a median word above it is taken for a fault
_LONG = 2.0  # medians: a word longer than this is cut down at the edge of a sentence
_PAUSE = 4.0  # medians between two segments that count as a pause
_TOLERANCE = 0.5  # seconds by which a word may reach over the edge of its segment


@dataclass(slots=True, kw_only=True)
class WordTiming:
    """One word of a window; times are seconds from the window's start."""

    word: str
    tokens: list[int]
    start: float
    end: float
    probability: float  # mean over its tokens


@torch.inference_mode()
def find_alignment(
    model: Whisper,
    tokenizer: Tokenizer,
    text_tokens: Sequence[int],
    audio: EncodedAudio,
    num_frames: int,
) -> list[WordTiming]:
    """When each word of ``text_tokens`` is said in the one window of ``audio``.

    The decoder runs once over the whole text, without timestamps. ``num_frames`` are the mel frames
    of the window that hold audio.
    """
    sot = list(tokenizer.sot_sequence)
    words, word_tokens = split_to_word_tokens(
        tokenizer, [*text_tokens, tokenizer.eot], tokenizer.language
    )
    words, word_tokens = words[:-1], word_tokens[:-1]  # the last one is the end of the text
    if not words or num_frames < 2:
        return []
    tokens = [*sot, tokenizer.no_timestamps, *text_tokens, tokenizer.eot]
    hidden, scores = _run(model, audio, tokens)
    # hidden state i predicts token i + 1: the text's first is predicted by <|notimestamps|>
    chances = _chances(model, tokenizer, hidden[len(sot) : -2], text_tokens)
    times = token_times(alignment_cost(scores, num_frames // 2, skip=len(sot))[:-1])
    bounds = [0, *accumulate(len(one) for one in word_tokens)]
    return [
        WordTiming(
            word=word,
            tokens=own,
            start=float(times[begin]),
            end=float(times[end]),
            probability=float(np.mean(chances[begin:end])),
        )
        for word, own, begin, end in zip(words, word_tokens, bounds, bounds[1:], strict=False)
    ]


def _run(model: Whisper, audio: EncodedAudio, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Hidden states [T, D] of ``tokens``, and the alignment heads' scores [heads, T, S]."""
    fed = torch.tensor([tokens], device=model.device)
    positions = torch.arange(len(tokens), device=model.device)[None]
    hidden, scores = model.decoder(
        fed,
        positions,
        model.decoder.new_cache(1),
        audio.cross,
        start=0,
        heads=model.heads_by_layer,
    )
    assert scores is not None, "heads were asked for"
    return hidden[0], scores[0]


def _chances(
    model: Whisper, tokenizer: Tokenizer, hidden: Tensor, text_tokens: Sequence[int]
) -> list[float]:
    """The probability of each of ``text_tokens`` [N] among all text, from ``hidden`` [N, D]."""
    logits = model.decoder.logits(hidden)[:, : tokenizer.eot]
    chosen = torch.tensor(text_tokens, device=logits.device)[:, None]
    # softmax of the chosen entries alone: the whole of it would be [N, V] again
    logprobs = logits.gather(1, chosen)[:, 0] - logits.logsumexp(dim=-1)
    chances: list[float] = logprobs.exp().tolist()
    return chances


def add_word_timestamps(
    segments: Sequence[Segment],
    model: Whisper,
    tokenizer: Tokenizer,
    audio: EncodedAudio,
    num_frames: int,
    *,
    time_offset: float,
    last_speech_timestamp: float,
    prepend_punctuations: str = PREPEND_PUNCTUATIONS,
    append_punctuations: str = APPEND_PUNCTUATIONS,
) -> None:
    """Gives the ``segments`` of one window their words, and moves their ends to those of the words.

    ``time_offset`` is where the window begins in the file, ``last_speech_timestamp`` where the last
    word before it ended; both in seconds.
    """
    texts = [[token for token in one.tokens if token < tokenizer.eot] for one in segments]
    timings = find_alignment(
        model, tokenizer, [token for text in texts for token in text], audio, num_frames
    )
    median = _median_duration(timings)
    if any(timing.end != timing.start for timing in timings):
        _shorten_at_sentence_ends(timings, median * _LONG)
    timings = _merge(timings, prepend_punctuations, append_punctuations)
    upcoming = iter(timings)
    for segment, text in zip(segments, texts, strict=True):
        words = _words_of(upcoming, len(text), time_offset)
        if words:
            _fit_start(segment, words, median, last_speech_timestamp)
            _fit_end(segment, words, median)
            last_speech_timestamp = segment.end
        segment.words = words


def _median_duration(timings: Sequence[WordTiming]) -> float:
    durations = [timing.end - timing.start for timing in timings if timing.end != timing.start]
    return min(_LONGEST_MEDIAN, float(np.median(durations))) if durations else 0.0


def _shorten_at_sentence_ends(timings: Sequence[WordTiming], longest: float) -> None:
    """A mark that ends a sentence, and the word after it, often swallow the pause: cut them down."""
    for before, timing in zip(timings, timings[1:], strict=False):
        if timing.end - timing.start > longest:
            if timing.word in _SENTENCE_ENDS:
                timing.end = timing.start + longest
            elif before.word in _SENTENCE_ENDS:
                timing.start = timing.end - longest


def _merge(timings: Sequence[WordTiming], prepended: str, appended: str) -> list[WordTiming]:
    """Punctuation joins its word, which keeps its own times."""
    merged = merge_punctuations([timing.word for timing in timings], prepended, appended)
    return [
        WordTiming(
            word=word.text,
            tokens=[token for member in word.members for token in timings[member].tokens],
            start=timings[word.core].start,
            end=timings[word.core].end,
            probability=timings[word.core].probability,
        )
        for word in merged
    ]


def _words_of(upcoming: Iterable[WordTiming], tokens: int, time_offset: float) -> list[Word]:
    """The next words, until ``tokens`` of them are used up."""
    words: list[Word] = []
    used = 0
    while used < tokens:
        timing = next(iter(upcoming), None)
        if timing is None:
            break
        used += len(timing.tokens)
        words.append(
            Word(
                word=timing.word,
                start=round(time_offset + timing.start, 2),
                end=round(time_offset + timing.end, 2),
                probability=timing.probability,
            )
        )
    return words


def _fit_start(
    segment: Segment, words: Sequence[Word], median: float, last_speech_timestamp: float
) -> None:
    """After a pause, the first two words must not be too long; then word and segment agree on a start."""
    first, longest = words[0], median * _LONG
    second = words[1] if len(words) > 1 else None
    after_pause = first.end - last_speech_timestamp > median * _PAUSE
    pair_is_long = second is not None and second.end - first.start > longest * 2
    if after_pause and (first.end - first.start > longest or pair_is_long):
        if second is not None and second.end - second.start > longest:
            first.end = second.start = max(second.end / 2, second.end - longest)
        first.start = max(0.0, first.end - longest)
    if segment.start < first.end and segment.start - _TOLERANCE > first.start:
        first.start = max(0.0, min(first.end - median, segment.start))
    else:
        segment.start = first.start


def _fit_end(segment: Segment, words: Sequence[Word], median: float) -> None:
    """The last word and its segment agree on an end; the segment's counts if the word is too long."""
    last = words[-1]
    if segment.end > last.start and segment.end + _TOLERANCE < last.end:
        last.end = max(last.start + median, segment.end)
    else:
        segment.end = last.end
