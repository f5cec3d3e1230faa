"""Greedy decoding of one row with a draft: as a state machine, and run on a model.

A draft is a guess at the text, usually the hypothesis of half a second ago. One decoder pass over it gives, at every
position, the token that the model would choose there; the guess is accepted as far as it agrees, and ordinary steps
go on from the first disagreement. The result is that of decoding without a draft (Leviathan et al., "Fast Inference
from Transformers via Speculative Decoding", 2023, at temperature 0), and the agreeing part is what two consecutive
hypotheses have in common.

``GreedyRow`` decides which tokens to run and what the answers mean, without a network: one row alone
(``decode_greedy``) and many rows in a batch go through the same steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..whisper.cache import CrossCache, SelfCache
from ..whisper.network import Whisper
from .strategies import likeliest, logprobs_of

__all__ = [
    "LOOKAHEAD",
    "GreedyOutput",
    "GreedyRow",
    "GreedyRules",
    "decode_greedy",
    "score_text",
]

LOOKAHEAD = 16  # draft tokens proposed again after a disagreement
_LOOP_REPEATS = 4  # an n-gram said this often in a row at the end is a loop
_LOOP_LONGEST = 16  # tokens in such an n-gram


class GreedyRow:
    """Feed ``feed()``, give what was chosen after each of the fed tokens to ``take``; until ``done``.

    ``initial`` is fed first, with the draft behind it; the first choice is the one after ``initial``.
    """

    def __init__(
        self,
        initial: Sequence[int],
        *,
        eot: int,
        context: int,
        draft: Sequence[int] = (),
        max_tokens: int = 224,
    ) -> None:
        """``context``: how many tokens the decoder has places for."""
        self.initial = tuple(initial)
        self.max_tokens = max(0, min(max_tokens, context - len(self.initial)))
        self.tokens: list[int] = []  # after the initial ones, without end-of-text
        self.logprobs: list[
            float
        ] = []  # of each of ``tokens``, then of end-of-text if it was reached
        self.accepted = 0  # draft tokens confirmed before the first disagreement
        self.passes = 0  # answers taken
        self.kept = 0  # tokens of the last feed that were right
        self.looped = False  # stopped because the text had begun to repeat itself
        self.done = False
        self.ended = False  # by end-of-text
        guess = list(draft)
        if eot in guess:
            guess = guess[: guess.index(eot)]  # no text goes on after its end
        self._draft = guess[: max(0, self.max_tokens - 1)]
        self._eot = eot
        self._at = 0  # where in the draft we would be, were it right again
        self._proposal: list[int] = self._draft

    @property
    def length(self) -> int:
        """Tokens before the next one to be chosen: the initial ones and the text."""
        return len(self.initial) + len(self.tokens)

    @property
    def start(self) -> int:
        """The position of the first token of ``feed``."""
        return 0 if self.passes == 0 else self.length - 1

    def feed(self, most: int = LOOKAHEAD + 1) -> list[int]:
        """The tokens to run next; after the first pass, at most ``most``: the last one, and a guess."""
        if self.passes == 0:
            return [*self.initial, *self._draft]
        last = self.tokens[-1]
        ahead = self._resume(last)
        room = min(LOOKAHEAD, most - 1, self.max_tokens - len(self.tokens) - 1)
        self._proposal = [] if ahead is None else self._draft[ahead : ahead + max(0, room)]
        if ahead is not None:
            self._at = ahead
        return [last, *self._proposal]

    def take(self, chosen: Sequence[int], logprobs: Sequence[float]) -> None:
        """``chosen``: the tokens after the last initial one and each of the draft, or after each of ``feed``."""
        agreed = _agreement(chosen, self._proposal)
        if self.passes == 0:
            self.accepted = agreed
        self.passes += 1
        self.kept = agreed + 1
        if self.max_tokens == 0:
            self.done = True
            return
        known = len(self.tokens)
        self.tokens += chosen[: agreed + 1]
        self.logprobs += logprobs[: agreed + 1]
        self._at += agreed + 1
        # several tokens are confirmed at once: a loop ends where it would have without
        loop = _loop_end(self.tokens, known + 1, self.max_tokens)
        if loop is not None:
            del self.tokens[loop:], self.logprobs[loop:]
            self.looped = self.done = True
        elif self.tokens[-1] == self._eot:
            self.tokens.pop()
            self.ended = self.done = True
        else:
            self.done = len(self.tokens) >= self.max_tokens

    def _resume(self, last: int) -> int | None:
        """Where the draft may go on after ``last``: the text often falls back in step after a changed word."""
        draft = self._draft
        for index in range(max(0, self._at - 2), min(len(draft) - 1, self._at + 4)):
            if draft[index] == last:
                return index + 1
        return None


def _agreement(chosen: Sequence[int], draft: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (a, b) in enumerate(zip(chosen, draft, strict=False)):
        if a != b:
            return index
    return min(len(chosen), len(draft))


def _loop_end(tokens: Sequence[int], first: int, limit: int) -> int | None:
    """The least number of ``tokens``, from ``first`` on and below ``limit``, that end in a loop."""
    for count in range(first, min(len(tokens), limit - 1) + 1):
        if _loops(tokens[max(0, count - _LOOP_LONGEST * _LOOP_REPEATS) : count]):
            return count
    return None


def _loops(tokens: Sequence[int]) -> bool:
    """Whether the end of ``tokens`` is one n-gram, said again and again."""
    last = tokens[-1] if tokens else None
    for size in range(1, min(_LOOP_LONGEST, len(tokens) - 1) + 1):
        if tokens[-1 - size] != last:
            continue
        span = size * _LOOP_REPEATS if size >= 3 else 12
        if len(tokens) < span:
            continue
        tail = tokens[-span:]
        if all(tail[i] == tail[i % size] for i in range(size, span)):
            return True
    return False


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


def score_text(
    model: Whisper,
    audio: CrossCache,
    initial: Sequence[int],
    tokens: Sequence[int],
    rules: GreedyRules,
    *,
    sot_index: int,
    allow_empty: bool = False,
    cache: SelfCache | None = None,
) -> GreedyOutput:
    """Run the decoder once over ``initial`` and a known text; return what decoding that text would have given.

    Args:
        tokens: the text, without end-of-text.
        allow_empty: the text may end at once.

    The other arguments are those of ``decode_greedy``.
    """
    fed = torch.tensor([[*initial, *tokens]], device=model.device)
    positions = torch.arange(fed.shape[1], device=model.device)[None]
    hidden, scores = model.decoder(
        fed,
        positions,
        cache or model.decoder.new_cache(1),
        audio,
        start=0,
        heads=model.heads_by_layer,
    )
    no_speech = model.decoder.logits(hidden[:, sot_index]).softmax(-1)[0, rules.no_speech].item()
    logits = model.decoder.logits(hidden[0, len(initial) - 1 :])
    logits += rules.suppressed
    if not allow_empty:
        logits[0, list(rules.blank)] = -torch.inf
    expected = torch.tensor([*tokens, rules.eot], device=model.device)
    logprobs = logprobs_of(expected, logits).tolist()
    return GreedyOutput(
        tokens=list(tokens),
        logprobs=logprobs,
        no_speech_prob=no_speech,
        scores=scores[0, :, sot_index:] if scores is not None else None,
        accepted=0,
        passes=1 + len(tokens),
        looped=False,
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
