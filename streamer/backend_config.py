"""What a backend may be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["BackendConfig", "ContextMode"]

ContextMode = Literal["trimmed", "full"]  # the audio there is with silence after it, or 30 s


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # of a final decode
    compression_ratio_threshold: float = 2.4  # above: the text repeats itself
    logprob_threshold: float = -1.0  # below: the text is unlikely
    no_speech_threshold: float = 0.6  # above: an unlikely text is silence, not a failure
    tokens_per_second: float = 14.0  # of audio; more is a runaway
    update_context: ContextMode = "trimmed"
    final_context: ContextMode = "full"
    final_beams: int = 5  # of the first try of a final decode; 1: greedy
    seed: int = 0  # of sampling at temperatures above 0
