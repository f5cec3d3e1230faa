"""Checks for texts that must not be committed: those the model invents when nobody speaks."""

from __future__ import annotations

from collections.abc import Sequence

from ...model.decoding.fallback import FallbackPolicy
from ..jobs import DecodedWord, DecodeResult

__all__ = ["drop_words_after_audio", "is_no_speech", "repeats_itself"]

_FRAME = 0.02  # seconds
_FALLBACK = FallbackPolicy()

# Noise, music and breath: the model half suspects that it hears no speech, and does not believe its own
# words. Real speech, even whispered or a single word, is clearly on one side of one of the two.
_NO_SPEECH = 0.45
_UNLIKELY_LOGPROB = -0.8
# Beyond doubt by either measure alone.
_SURELY_NO_SPEECH = 0.9
_HOPELESS_LOGPROB = -1.6


def is_no_speech(result: DecodeResult) -> bool:
    """Return True where the text of ``result``, the first of an utterance, comes from no speech at all."""
    if not any(character.isalnum() for word in result.words for character in word.text):
        return True
    if result.avg_logprob < _HOPELESS_LOGPROB:
        return True
    if result.no_speech_prob > _SURELY_NO_SPEECH and result.avg_logprob < _UNLIKELY_LOGPROB / 2:
        return True
    return result.no_speech_prob > _NO_SPEECH and result.avg_logprob < _UNLIKELY_LOGPROB


def repeats_itself(result: DecodeResult) -> bool:
    """Return True where the text of ``result`` is a loop, in which small models get caught."""
    return result.looped or _FALLBACK.repeats(result)


def drop_words_after_audio(
    words: Sequence[DecodedWord], audio_seconds: float
) -> tuple[DecodedWord, ...]:
    """Return ``words`` without the last ones that begin where the audio has ended: nobody said them."""
    count = len(words)
    while count and words[count - 1].start > audio_seconds - _FRAME:
        count -= 1
    return tuple(words[:count])
