"""Beam search: one search as a state machine, and the two loops that run it on a model.

``BeamSearch`` knows one window's beams and no network. ``BeamSearchDecoder`` runs one of them for every window of a
batch (``decode``), ``beam_search`` one alone after given tokens (streams on a CPU); on a GPU the rows of many streams
each have theirs.

Source: Kasai et al., "A Call for Clarity in Beam Search" (arXiv:2204.05424).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from ..whisper.cache import CrossCache
from ..whisper.network import Whisper
from .greedy import GreedyRules
from .inference import Inference
from .strategies import Candidate, MaximumLikelihoodRanker

__all__ = ["BeamSearch", "BeamSearchDecoder", "Ranking", "beam_search"]

_Text = tuple[int, ...]
Ranking = Sequence[tuple[int, float]]  # tokens and their log-probabilities, the likeliest first


class BeamSearch:
    """The beams of one window.

    Give ``take`` the ranking of the tokens that may follow ``initial``; then run ``last``, one token a beam, and give
    it their rankings; until ``done``. A ranking needs one token more than there are beams, so that a beam may end and
    still go on otherwise. Sums have the precision of the log-probabilities given.

    Args:
        initial: tokens before the text; they only count for ``length``.
        beams: texts that are followed at a time.
        eot: the token that ends a text.
        max_tokens: length of the longest text.
        patience: the search is over when ``round(beams * patience)`` texts have ended.
    """

    def __init__(
        self,
        initial: Sequence[int] = (),
        *,
        beams: int,
        eot: int,
        max_tokens: int,
        patience: float = 1.0,
    ) -> None:
        self.initial = tuple(initial)
        self.done = False
        self._beams = beams
        self._eot = eot
        self._max_tokens = max_tokens
        self._max_candidates = round(beams * patience)
        self._alive: list[tuple[_Text, float]] = []  # texts and their log-probabilities, best first
        self._finished: dict[_Text, float] = {}  # with the end token

    @property
    def last(self) -> list[int]:
        """The tokens to run next, one a beam."""
        return [text[-1] for text, _ in self._alive]

    @property
    def length(self) -> int:
        """How many tokens come before ``last``."""
        return len(self.initial) + len(self._alive[0][0]) - 1

    def take(self, rankings: Sequence[Ranking]) -> list[int]:
        """Extend the beams.

        Args:
            rankings: one a beam; at the start one alone, or the same one for every beam.

        Returns:
            For each of the next beams, the beam that it extends.
        """
        if self._max_tokens <= 0:
            self.done = True
            return [0]
        found: dict[_Text, float] = {}
        origin: dict[_Text, int] = {}
        alive = self._alive or [((), 0.0)] * len(rankings)
        for beam, ((text, total), ranking) in enumerate(zip(alive, rankings, strict=True)):
            for token, logprob in ranking:
                longer = (*text, token)  # beams that say the same, as at the start, count once
                found[longer] = total + logprob
                origin[longer] = beam
        self._alive = []
        for text in sorted(found, key=found.__getitem__, reverse=True):
            if text[-1] != self._eot:
                self._alive.append((text, found[text]))
                if len(self._alive) == self._beams:
                    break
            elif len(self._finished) < self._max_candidates:
                self._finished[text] = found[text]
        full = len(self._finished) >= self._max_candidates
        self.done = full or len(self._alive[0][0]) >= self._max_tokens
        return [origin[text] for text, _ in self._alive]

    def candidates(self) -> list[Candidate]:
        """The texts that have ended; where these are fewer than beams, the best of the others stand in."""
        finished = dict(self._finished)
        # numpy's order among equal ones is the reference's
        for beam in np.argsort([total for _, total in self._alive])[::-1]:
            if len(finished) >= self._beams:
                break
            text, total = self._alive[beam]
            finished[(*text, self._eot)] = total
        return [
            Candidate(tokens=text[:-1], sum_logprob=float(total))
            for text, total in finished.items()
        ]

    def best(self) -> list[int]:
        """The likeliest text for its length, without end-of-text; empty when nothing was found."""
        candidates = self.candidates()
        if not candidates:
            return []
        return list(candidates[MaximumLikelihoodRanker(None).rank(candidates)].tokens)


class BeamSearchDecoder:
    """The ``TokenDecoder`` of beam search: every window of a batch has a search of its own.

    Args:
        beam_size: G, the rows that each window has in the batch.
        eot: the token that ends a text.
        sample_begin: how many tokens come before the text.
        reorder: called after every step with the row that each row goes on from (``Inference.reorder``).
        patience: as for ``BeamSearch``; 1 when None.
    """

    def __init__(
        self,
        *,
        beam_size: int,
        eot: int,
        sample_begin: int,
        reorder: Callable[[Sequence[int]], None],
        patience: float | None = None,
    ) -> None:
        self._beam_size = beam_size
        self._eot = eot
        self._sample_begin = sample_begin
        self._reorder = reorder
        self._patience = patience or 1.0
        self._searches: list[BeamSearch] = []  # one a window; made at the first update

    def update(self, tokens: Tensor, logits: Tensor) -> tuple[Tensor, bool]:
        rankings = _rank(logits, self._beam_size + 1)
        if not self._searches:
            self._searches = [self._new_search() for _ in range(len(logits) // self._beam_size)]
        sources: list[int] = []
        for window, search in enumerate(self._searches):
            first = window * self._beam_size
            # one whose search is over goes on beside the others: its result stays
            origins = search.take(rankings[first : first + self._beam_size])
            sources += [first + origin for origin in origins]
        self._reorder(sources)
        last = [token for search in self._searches for token in search.last]
        longer = torch.cat([tokens[sources], tokens.new_tensor(last)[:, None]], dim=1)
        return longer, all(search.done for search in self._searches)

    def _new_search(self) -> BeamSearch:
        unbounded = 1 << 31  # whoever runs the steps counts them
        return BeamSearch(
            beams=self._beam_size, eot=self._eot, max_tokens=unbounded, patience=self._patience
        )

    def finalize(self, tokens: Tensor) -> list[list[Candidate]]:
        assert self._searches, "update comes before finalize"
        return [search.candidates() for search in self._searches]


def beam_search(
    model: Whisper,
    audio: CrossCache,
    initial: Sequence[int],
    rules: GreedyRules,
    *,
    beam_size: int,
    max_tokens: int,
    allow_empty: bool = False,
) -> list[int]:
    """Find the likeliest text after ``initial`` in the one window of ``audio``.

    Args:
        model: the model that ``audio`` was encoded by.
        audio: keys and values of one window.
        initial: prompt, start-of-transcript sequence and forced prefix.
        rules: which tokens may not come.
        beam_size: texts that are followed at a time.
        max_tokens: length of the longest text; less where the model's context is full before.
        allow_empty: the text may end at once, as it may after a forced prefix.

    Returns:
        The tokens of the text, without end-of-text.
    """
    most = min(max_tokens, model.dims.n_text_ctx - len(initial))
    inference = Inference(model.decoder, audio, room=len(initial) + most)
    search = BeamSearch(initial, beams=beam_size, eot=rules.eot, max_tokens=most)
    tokens = torch.tensor([list(initial)], device=model.device)
    logits, _ = inference.prefill(tokens, sot_index=0, group=beam_size)
    if not allow_empty:
        logits[:, list(rules.blank)] = -torch.inf
    with model.decoder.stepping():
        origins = search.take(_rank(logits + rules.suppressed, beam_size + 1))
        while not search.done:
            inference.reorder(origins)
            logits = inference.step(torch.tensor(search.last, device=model.device))
            origins = search.take(_rank(logits + rules.suppressed, beam_size + 1))
    return search.best()


def _rank(logits: Tensor, count: int) -> list[Ranking]:
    """``logits`` [B, V] -> the ``count`` likeliest tokens of every row."""
    best = logits.float().log_softmax(dim=-1).topk(count, dim=-1)
    logprobs = best.values.cpu().numpy()  # stays float32, as in the reference
    return [
        list(zip(tokens, row, strict=True))
        for tokens, row in zip(best.indices.tolist(), logprobs, strict=True)
    ]
