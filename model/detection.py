"""Which language is spoken. Source: Radford et al. (2022), section 2.3."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .errors import DecodingOptionsError
from .inference import EncodedAudio, TorchInference
from .tokenizer import Tokenizer, get_tokenizer
from .whisper import Whisper

__all__ = ["detect_language"]


@torch.inference_mode()
def detect_language(
    model: Whisper, mel: Tensor | EncodedAudio, tokenizer: Tokenizer | None = None
) -> tuple[Tensor, Any]:
    """Which language is spoken, by one decoder step after ``<|startoftranscript|>``.

    ``mel`` is as for :func:`decode`. Returns the likeliest language tokens ``[A]``, and for each window
    the probability of every language by ISO code; for a single window one token and one dict.

    Raises:
        DecodingOptionsError: the model is English-only.
    """
    if tokenizer is None:
        tokenizer = get_tokenizer(model.is_multilingual, num_languages=model.num_languages)
    if tokenizer.language is None:
        raise DecodingOptionsError(
            "language cannot be detected by an English-only model: use a multilingual one"
        )
    single = isinstance(mel, Tensor) and mel.ndim == 2
    audio = mel if isinstance(mel, EncodedAudio) else _encode(model, mel)
    first = torch.full((audio.rows, 1), tokenizer.sot, device=model.device)
    logits, _ = TorchInference(model, audio).prefill(first, sot_index=0, group=1)  # [A, V]
    languages = torch.tensor(tokenizer.all_language_tokens, device=logits.device)
    chances = logits[:, languages].softmax(dim=-1)  # [A, languages]
    tokens = languages[chances.argmax(dim=-1)]
    probs = [dict(zip(tokenizer.all_language_codes, row, strict=True)) for row in chances.tolist()]
    return (tokens[0], probs[0]) if single else (tokens, probs)


def _encode(model: Whisper, mel: Tensor) -> EncodedAudio:
    return EncodedAudio.from_mel(model, mel[None] if mel.ndim == 2 else mel)
