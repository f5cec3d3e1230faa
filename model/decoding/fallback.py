"""The ladder of temperatures: decode again, less surely, what looks like a loop or a guess.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section 4.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DecodingOptionsError
from ..whisper.network import Whisper
from .inference import EncodedAudio
from .task import DecodingOptions, DecodingResult, decode

__all__ = ["FallbackPolicy", "decode_with_fallback", "options_ladder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FallbackPolicy:
    """When a result is not taken. None switches a test off."""

    compression_ratio_threshold: float | None = 2.4  # above it, the text repeats itself
    logprob_threshold: float | None = -1.0  # below it, the model guesses
    no_speech_threshold: float | None = 0.6  # above it, nothing is said where the model guesses

    def is_accepted(self, result: DecodingResult) -> bool:
        unlikely = self._is_unlikely(result)
        if unlikely and self._says_silence(result):
            return True  # silence: no temperature would help
        limit = self.compression_ratio_threshold
        repetitive = limit is not None and result.compression_ratio > limit
        return not (repetitive or unlikely)

    def is_silence(self, result: DecodingResult) -> bool:
        """Whether the window is to be passed over: no speech, by a text that is not sure either."""
        sure = self.logprob_threshold is not None and result.avg_logprob > self.logprob_threshold
        return self._says_silence(result) and not sure

    def _is_unlikely(self, result: DecodingResult) -> bool:
        return self.logprob_threshold is not None and result.avg_logprob < self.logprob_threshold

    def _says_silence(self, result: DecodingResult) -> bool:
        limit = self.no_speech_threshold
        return limit is not None and result.no_speech_prob > limit


def options_ladder(
    temperature: float | Sequence[float], decode_options: Mapping[str, Any]
) -> tuple[DecodingOptions, ...]:
    """The options for every temperature: beam search belongs to 0, ``best_of`` to those above.

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


def decode_with_fallback(
    model: Whisper,
    audio: EncodedAudio,
    ladder: Sequence[DecodingOptions],
    policy: FallbackPolicy,
    *,
    prompt: Sequence[int] = (),
) -> list[DecodingResult]:
    """Decodes every window at the first of the ladder's temperatures whose result is accepted.

    The last temperature's result is taken as it is. Windows of a batch climb the ladder each alone.
    """
    results: dict[int, DecodingResult] = {}
    open_rows = list(range(audio.rows))
    for options in ladder:
        decoded = decode(model, audio.select(open_rows), replace(options, prompt=tuple(prompt)))
        results.update(zip(open_rows, decoded, strict=True))
        open_rows = [row for row in open_rows if not policy.is_accepted(results[row])]
        if not open_rows:
            break
    return [results[row] for row in range(audio.rows)]
