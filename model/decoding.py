"""Decoding of windows of 30 seconds: ``decode`` and ``detect_language``.

Source: Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022), section
2.3, and the published implementation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, overload

import torch
from torch import Tensor

from .decoding_options import DecodingOptions
from .decoding_task import DecodingResult, DecodingTask, check_for_model
from .detection import detect_language
from .inference import EncodedAudio
from .whisper import Whisper

__all__ = [
    "DecodingOptions",
    "DecodingResult",
    "check_for_model",
    "decode",
    "detect_language",
]


@overload
def decode(
    model: Whisper, mel: Tensor, options: DecodingOptions | None = None, **overrides: Any
) -> DecodingResult | list[DecodingResult]: ...
@overload
def decode(
    model: Whisper, mel: EncodedAudio, options: DecodingOptions | None = None, **overrides: Any
) -> list[DecodingResult]: ...
@torch.inference_mode()
def decode(
    model: Whisper,
    mel: Tensor | EncodedAudio,
    options: DecodingOptions | None = None,
    **overrides: Any,
) -> DecodingResult | list[DecodingResult]:
    """Decodes one window of 30 seconds, or several at once.

    Args:
        model: as made by ``load_model``.
        mel: ``[n_mels, 3000]`` or ``[A, n_mels, 3000]``, or the features of such windows,
            ``[1500, D]`` or ``[A, 1500, D]``, or what is kept of them to decode again.
        options: how; ``overrides`` replace single fields of it.

    Returns:
        One result for one window, else a list.

    Raises:
        DecodingOptionsError: options that make no sense, alone or for this model.
    """
    options = replace(options or DecodingOptions(), **overrides)
    if isinstance(mel, EncodedAudio):
        return DecodingTask(model, options).run(mel)
    single = mel.ndim == 2
    task = DecodingTask(model, options)  # reject bad options before the encoder runs
    results = task.run(EncodedAudio.from_mel(model, mel[None] if single else mel))
    return results[0] if single else results
