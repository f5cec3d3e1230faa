"""Greedy decoding of one window, with a draft that is checked in one pass.

The draft is a guess at the text, usually the hypothesis of half a second ago. One decoder pass over it
gives, at every position, the token the model would choose there; the guess is accepted as far as it
agrees and ordinary steps go on from the first disagreement. The result is that of decoding without a
draft (Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", 2023, at
temperature 0), and the agreeing part is what two consecutive hypotheses have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .cache import CrossCache, SelfCache
from .decoders import likeliest
from .whisper import Whisper

__all__ = ["GreedyOutput", "GreedyRules", "decode_greedy"]

_LOOKAHEAD = 16  # draft tokens proposed again after a disagreement
_LOOP_REPEATS = 4  # an n-gram said this often in a row at the end is a loop
_LOOP_LONGEST = 16  # tokens in such an n-gram


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
    draft = list(draft) if temperature == 0.0 else []
    if rules.eot in draft:
        draft = draft[: draft.index(rules.eot)]  # no text goes on after its end
    room = model.dims.n_text_ctx - len(initial)
    max_tokens = max(0, min(max_tokens, room))
    draft = draft[: max(0, max_tokens - 1)]

    hidden = run.forward([*initial, *draft], 0)
    no_speech = model.decoder.logits(hidden[:, sot_index]).softmax(-1)[0, rules.no_speech].item()
    logits = model.decoder.logits(hidden[0, len(initial) - 1 :])  # [draft + 1, V]
    choice = _choose(logits, rules, temperature, generator, first=not allow_empty)
    accepted = _agreement(choice.tokens, draft)
    run.keep(len(initial) + accepted, skip=sot_index)

    tokens = choice.tokens[: accepted + 1]
    logprobs = choice.logprobs[: accepted + 1]
    if max_tokens == 0:
        tokens, logprobs = [], []
    at = accepted + 1  # where in the draft we would be, were it right again
    # a draft confirms several tokens at once: a loop ends where it would have without
    loop = _loop_end(tokens, 1, max_tokens)
    with model.decoder.stepping():
        while loop is None and tokens and tokens[-1] != rules.eot and len(tokens) < max_tokens:
            ahead = _resume(draft, at, tokens[-1])
            proposal = (
                draft[ahead : ahead + min(_LOOKAHEAD, max_tokens - len(tokens) - 1)]
                if ahead
                else []
            )
            base = len(initial) + len(tokens) - 1
            logits = model.decoder.logits(run.forward([tokens[-1], *proposal], base)[0])
            choice = _choose(logits, rules, temperature, generator)
            same = _agreement(choice.tokens, proposal)
            run.keep(same + 1)
            tokens += choice.tokens[: same + 1]
            logprobs += choice.logprobs[: same + 1]
            at = (ahead if ahead else at) + same + 1
            loop = _loop_end(tokens, len(tokens) - same, max_tokens)
    if loop is not None:
        run.drop(len(tokens) - loop)
        del tokens[loop:], logprobs[loop:]
    if tokens and tokens[-1] == rules.eot:
        tokens.pop()
    elif with_scores and tokens:
        # the last token was chosen but never fed: alignment wants its row, to end the last word
        run.forward([tokens[-1]], min(len(initial) + len(tokens) - 1, model.dims.n_text_ctx - 1))
        run.keep(1)
    return GreedyOutput(
        tokens=tokens,
        logprobs=logprobs,
        no_speech_prob=no_speech,
        scores=torch.cat(run.kept, dim=1) if run.kept else None,
        accepted=accepted,
        passes=run.passes,
        looped=loop is not None,
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

    def drop(self, rows: int) -> None:
        """Forgets the attention of the last ``rows`` tokens kept."""
        if rows and self.kept:
            kept = torch.cat(self.kept, dim=1)
            self.kept = [kept[:, : kept.shape[1] - rows]]


def _choose(
    logits: Tensor,
    rules: GreedyRules,
    temperature: float,
    generator: torch.Generator | None,
    *,
    first: bool = False,
) -> _Choice:
    """Picks one token at each of the positions of ``logits`` [T, V], with its log-probability."""
    logits = logits + rules.suppressed
    if first:
        logits[0, list(rules.blank)] = -torch.inf
    if temperature == 0.0:
        picked = likeliest(logits)  # [T]
    else:
        probabilities = (logits / temperature).softmax(dim=-1)
        picked = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    chosen = logits.gather(1, picked[:, None])[:, 0] - logits.logsumexp(dim=-1)
    return _Choice(tokens=picked.tolist(), logprobs=chosen.tolist())


def _agreement(chosen: Sequence[int], draft: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (a, b) in enumerate(zip(chosen, draft, strict=False)):
        if a != b:
            return index
    return min(len(chosen), len(draft))


def _resume(draft: Sequence[int], at: int, last: int) -> int | None:
    """Where the draft may go on after ``last``: the text often falls back in step after a changed word."""
    for index in range(max(0, at - 2), min(len(draft) - 1, at + 4)):
        if draft[index] == last:
            return index + 1
    return None


def _loop_end(tokens: Sequence[int], first: int, limit: int) -> int | None:
    """The least number of ``tokens``, from ``first`` on and below ``limit``, that end in a loop."""
    for count in range(first, min(len(tokens), limit - 1) + 1):
        if _loops(tokens[max(0, count - _LOOP_LONGEST * _LOOP_REPEATS) : count]):
            return count
    return None


def _loops(tokens: Sequence[int]) -> bool:
    """Whether the end of ``tokens`` is one n-gram, said again and again."""
    for size in range(1, _LOOP_LONGEST + 1):
        span = size * _LOOP_REPEATS if size >= 3 else 12
        if len(tokens) < span:
            continue
        tail = tokens[-span:]
        if all(tail[i] == tail[i % size] for i in range(size, span)):
            return True
    return False
