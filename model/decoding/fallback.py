"""The fallback rule: a text that repeats itself or is a guess is decoded again at a higher temperature.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5.
No torch here.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import DecodingOptionsError
from .options import DecodingOptions

__all__ = [
    "COMPRESSION_RATIO_THRESHOLD",
    "LOGPROB_THRESHOLD",
    "NO_SPEECH_THRESHOLD",
    "TEMPERATURES",
    "TEMPERATURE_STEP",
    "FallbackPolicy",
    "TextScores",
    "compression_ratio",
    "options_ladder",
]

COMPRESSION_RATIO_THRESHOLD = 2.4
LOGPROB_THRESHOLD = -1.0
NO_SPEECH_THRESHOLD = 0.6
TEMPERATURE_STEP = 0.2
TEMPERATURES = tuple(round(TEMPERATURE_STEP * step, 1) for step in range(6))  # 0 to 1


class TextScores(Protocol):
    """The measures of one decoded text that the rule looks at."""

    @property
    def avg_logprob(self) -> float:
        """The mean log-probability of the tokens, end-of-text included."""
        ...

    @property
    def no_speech_prob(self) -> float:
        """The probability that nothing is said in the window."""
        ...

    @property
    def compression_ratio(self) -> float:
        """The size of the text over its size after compression."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackPolicy:
    """The thresholds of the rule. None switches a test off."""

    compression_ratio_threshold: float | None = COMPRESSION_RATIO_THRESHOLD
    logprob_threshold: float | None = LOGPROB_THRESHOLD
    no_speech_threshold: float | None = NO_SPEECH_THRESHOLD
    # A text that repeats itself, is unlikely and stands over silence. False: it is silence, as in the
    # reference, and no temperature would help. True: it fails, as a stream has no later pass to drop it.
    rejects_repeats_over_silence: bool = False

    def has_failed(self, scores: TextScores, *, looped: bool = False) -> bool:
        """Return whether a text is to be decoded again.

        Args:
            scores: the measures of the text.
            looped: the decoder itself has found a loop in the text.
        """
        repeats = looped or self.repeats(scores)
        limit = self.logprob_threshold
        unlikely = limit is not None and scores.avg_logprob < limit
        if unlikely and self._is_silent(scores):
            return repeats and self.rejects_repeats_over_silence
        return repeats or unlikely

    def repeats(self, scores: TextScores) -> bool:
        """Return whether a text compresses so well that it must repeat itself."""
        limit = self.compression_ratio_threshold
        return limit is not None and scores.compression_ratio > limit

    def is_silence(self, scores: TextScores) -> bool:
        """Return whether a window is passed over: probably no speech, and a text that is not sure either."""
        limit = self.logprob_threshold
        sure = limit is not None and scores.avg_logprob > limit
        return self._is_silent(scores) and not sure

    def _is_silent(self, scores: TextScores) -> bool:
        limit = self.no_speech_threshold
        return limit is not None and scores.no_speech_prob > limit


def compression_ratio(text: str) -> float:
    """Return the bytes of ``text`` in UTF-8 over those after zlib; 0.0 for no text."""
    raw = text.encode("utf-8")
    return len(raw) / len(zlib.compress(raw))


def options_ladder(
    temperature: float | Sequence[float], decode_options: Mapping[str, Any]
) -> tuple[DecodingOptions, ...]:
    """Return the options for every temperature: beam search belongs to 0, ``best_of`` to those above.

    Raises:
        DecodingOptionsError: an unknown option, or a value that makes no sense; names the field.
    """
    temperatures = (temperature,) if isinstance(temperature, (int, float)) else tuple(temperature)
    if not temperatures:
        raise DecodingOptionsError("temperature must be a number or a series of them, not empty")
    unknown = set(decode_options) - set(DecodingOptions.__dataclass_fields__)
    if unknown:
        raise DecodingOptionsError(f"{min(unknown)} is not a decoding option: see DecodingOptions")
    ladder = []
    for value in temperatures:
        excluded = ("beam_size", "patience") if value > 0 else ("best_of",)
        kept = {name: given for name, given in decode_options.items() if name not in excluded}
        ladder.append(DecodingOptions(**{**kept, "temperature": value}))
    return tuple(ladder)
