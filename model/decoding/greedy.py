"""Greedy decoding of one window, with a draft that is checked in one pass (see ``greedy_row``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..whisper.cache import CrossCache, SelfCache
from ..whisper.network import Whisper
from .greedy_row import GreedyRow
from .strategies import likeliest, logprobs_of

__all__ = ["GreedyOutput", "GreedyRules", "decode_greedy"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GreedyRules:
    """What may not be chosen. ``suppressed``: [V], 0 or -inf; ``blank``: ids barred as the first token."""

    suppressed: Tensor
    blank: tuple[int, ...]
    eot: int
    no_speech: int


@dataclass(slots=True, kw_only=True, eq=False)
class GreedyOutput:
    """``scores`` [heads, rows, S]: attention rows from ``<|startoftranscript|>`` to the last token."""

    tokens: list[int]  # after the initial ones, without end-of-text
    logprobs: list[float]  # of each of ``tokens``, then of end-of-text if it was reached
    no_speech_prob: float
    scores: Tensor | None
    accepted: int  # draft tokens confirmed before the first disagreement
    passes: int  # decoder passes run
    looped: bool  # stopped because the text had begun to repeat itself


@dataclass(slots=True, kw_only=True)
class _Choice:
    tokens: list[int]
    logprobs: list[float]


def decode_greedy(
    model: Whisper,
    audio: CrossCache,
    initial: Sequence[int],
    rules: GreedyRules,
    *,
    sot_index: int,
    draft: Sequence[int] = (),
    max_tokens: int = 224,
    allow_empty: bool = False,
    with_scores: bool = True,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    cache: SelfCache | None = None,
) -> GreedyOutput:
    """Decodes one row from ``initial`` (prompt, start-of-transcript sequence, forced prefix).

    ``audio`` holds one row. ``sot_index`` is where ``<|startoftranscript|>`` stands in ``initial``.
    ``allow_empty`` lets the model end at once (it may when a prefix was forced). ``draft`` is only
    used at temperature 0.
    """
    run = _Run(model, audio, rules, cache or model.decoder.new_cache(1), with_scores)
    row = GreedyRow(
        initial,
        eot=rules.eot,
        context=model.dims.n_text_ctx,
        draft=draft if temperature == 0.0 else (),
        max_tokens=max_tokens,
    )
    hidden = run.forward(row.feed(), 0)
    no_speech = model.decoder.logits(hidden[:, sot_index]).softmax(-1)[0, rules.no_speech].item()
    logits = model.decoder.logits(hidden[0, len(initial) - 1 :])  # [draft + 1, V]
    choice = _choose(logits, rules, temperature, generator, first=not allow_empty)
    row.take(choice.tokens, choice.logprobs)
    run.keep(len(initial) + row.kept - 1, skip=sot_index)
    with model.decoder.stepping():
        while not row.done:
            fed = row.feed()
            logits = model.decoder.logits(run.forward(fed, row.start)[0])
            choice = _choose(logits, rules, temperature, generator)
            row.take(choice.tokens, choice.logprobs)
            run.keep(row.kept)
    if with_scores and row.tokens and not row.ended:
        # the last token is fed once more, alone: alignment wants its row, to end the last word
        run.drop_to(row.length - 1 - sot_index)
        run.forward([row.tokens[-1]], min(row.length, model.dims.n_text_ctx) - 1)
        run.keep(1)
    return GreedyOutput(
        tokens=row.tokens,
        logprobs=row.logprobs,
        no_speech_prob=no_speech,
        scores=torch.cat(run.kept, dim=1) if run.kept else None,
        accepted=row.accepted,
        passes=run.passes,
        looped=row.looped,
    )


class _Run:
    """The decoder, its cache and the attention rows kept so far, for one row."""

    def __init__(
        self, model: Whisper, audio: CrossCache, rules: GreedyRules, cache: SelfCache, scores: bool
    ) -> None:
        self.model = model
        self.audio = audio
        self.cache = cache
        self.heads = model.heads_by_layer if scores else None
        self.passes = 0
        self.kept: list[Tensor] = []
        self._latest: Tensor | None = None

    def forward(self, tokens: Sequence[int], start: int) -> Tensor:
        """Runs ``tokens`` at positions from ``start`` on -> hidden states [1, T, D]"""
        device = self.model.device
        fed = torch.tensor([tokens], device=device)
        positions = torch.arange(start, start + len(tokens), device=device)[None]
        hidden, self._latest = self.model.decoder(
            fed, positions, self.cache, self.audio, start=start, heads=self.heads
        )
        self.passes += 1
        out: Tensor = hidden
        return out

    def keep(self, rows: int, *, skip: int = 0) -> None:
        """Keeps the attention of the first ``rows`` tokens of the latest pass, but for the first ``skip``."""
        if self._latest is not None:
            self.kept.append(self._latest[0, :, skip:rows])

    def drop_to(self, rows: int) -> None:
        """Forgets the attention of all but the first ``rows`` tokens kept."""
        if self.kept:
            self.kept = [torch.cat(self.kept, dim=1)[:, :rows]]


def _choose(
    logits: Tensor,
    rules: GreedyRules,
    temperature: float,
    generator: torch.Generator | None,
    *,
    first: bool = False,
) -> _Choice:
    """Picks one token at each of the positions of ``logits`` [T, V], with its log-probability.

    In place: of a draft's positions they are many megabytes.
    """
    logits += rules.suppressed
    if first:
        logits[0, list(rules.blank)] = -torch.inf
    if temperature == 0.0:
        picked = likeliest(logits)  # [T]
    else:
        probabilities = (logits / temperature).softmax(dim=-1)
        picked = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return _Choice(tokens=picked.tolist(), logprobs=logprobs_of(picked, logits).tolist())
