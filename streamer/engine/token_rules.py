"""A stream's use of the model's vocabulary: the tokenizer, the tokens that are barred, the language."""

from __future__ import annotations

import torch
from torch import Tensor

from ...model.decoding.greedy import GreedyRules
from ...model.whisper.network import Whisper
from ...model.whisper.tokenizer import Tokenizer, get_tokenizer
from ..jobs import DecodeJob, Task

__all__ = ["doubts_language", "make_rules", "pick_language", "tokenizer_for"]


def tokenizer_for(model: Whisper, language: str | None, task: Task) -> Tokenizer:
    """Return the tokenizer of ``model``; ``language`` and ``task`` are ignored by an English one."""
    multilingual = model.is_multilingual
    return get_tokenizer(
        multilingual,
        num_languages=model.num_languages if multilingual else 99,
        language=language if multilingual else None,
        task=task if multilingual else None,
    )


def make_rules(model: Whisper, tokenizer: Tokenizer) -> GreedyRules:
    """Return the tokens that a stream's text must not have: non-speech, special tokens, timestamps."""
    suppressed = torch.zeros(model.dims.n_vocab, device=model.device)
    suppressed[list(tokenizer.non_speech_tokens)] = -torch.inf
    # every special token and timestamp lies above end-of-text: none belongs in the text
    suppressed[tokenizer.eot + 1 :] = -torch.inf
    return GreedyRules(
        suppressed=suppressed,
        blank=(*tokenizer.encode(" "), tokenizer.eot),
        eot=tokenizer.eot,
        no_speech=tokenizer.no_speech,
    )


def doubts_language(job: DecodeJob, model: Whisper) -> bool:
    """Return whether the language of ``job`` is to be detected."""
    return model.is_multilingual and (job.language is None or job.switch_above is not None)


def pick_language(job: DecodeJob, tokenizer: Tokenizer, logits: Tensor) -> tuple[str, float | None]:
    """Return the language to decode in, and its probability. ``logits`` [V] follow ``<|startoftranscript|>``."""
    likely = logits[list(tokenizer.all_language_tokens)].softmax(dim=-1).tolist()
    chances = dict(zip(tokenizer.all_language_codes, likely, strict=True))
    if job.languages:
        chances = {code: chances[code] for code in job.languages if code in chances}
    best = max(chances, key=chances.__getitem__)
    if job.language is not None and chances[best] < (job.switch_above or 0.0):
        best = job.language
    return best, chances.get(best)
