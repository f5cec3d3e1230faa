"""Beam search over one window as a state machine: which tokens to run next, and what their ranking means.

The same search as ``BeamSearchDecoder``, for rows that are decoded beside others. Source: Kasai et al., "A
Call for Clarity in Beam Search" (arXiv:2204.05424), with a patience of 1. No torch here.
"""

from __future__ import annotations

from collections.abc import Sequence

from .strategies import Candidate, MaximumLikelihoodRanker

__all__ = ["BeamRow"]

_Text = tuple[int, ...]
Ranking = Sequence[tuple[int, float]]  # tokens and their log-probabilities, the likeliest first


class BeamRow:
    """Give the ranking after ``initial`` to ``take``; then run ``last`` tokens and give theirs; until ``done``."""

    def __init__(
        self, initial: Sequence[int], *, beams: int, eot: int, context: int, max_tokens: int
    ) -> None:
        """``context``: how many tokens the decoder has places for."""
        self.initial = tuple(initial)
        self.done = False
        self._beams = beams
        self._eot = eot
        self._most = min(max_tokens, context - len(self.initial))
        self._alive: list[tuple[_Text, float]] = [((), 0.0)]
        self._finished: dict[_Text, float] = {}

    @property
    def last(self) -> list[int]:
        """The tokens to run next, one a beam."""
        return [text[-1] for text, _ in self._alive]

    @property
    def length(self) -> int:
        """Tokens before ``last``."""
        return len(self.initial) + len(self._alive[0][0]) - 1

    def take(self, rankings: Sequence[Ranking]) -> list[int]:
        """One ranking a beam -> from which beam each of the next ones goes on."""
        if self._most <= 0:
            self.done = True
            return [0]
        found: dict[_Text, float] = {}
        origin: dict[_Text, int] = {}
        for beam, ((text, total), ranking) in enumerate(zip(self._alive, rankings, strict=True)):
            for token, logprob in ranking:
                longer = (*text, token)
                found[longer] = total + logprob
                origin[longer] = beam
        alive: list[tuple[_Text, float]] = []
        for text in sorted(found, key=found.__getitem__, reverse=True):
            if text[-1] != self._eot:
                alive.append((text, found[text]))
                if len(alive) == self._beams:
                    break
            elif len(self._finished) < self._beams:
                self._finished[text] = found[text]
        self._alive = alive
        full = len(self._finished) >= self._beams
        self.done = full or len(alive[0][0]) >= self._most
        return [origin[text] for text, _ in alive]

    def best(self) -> list[int]:
        """The likeliest text, without end-of-text."""
        finished = dict(self._finished)
        # too few have ended: the best of the rest stand in
        for text, total in sorted(self._alive, key=lambda one: one[1], reverse=True):
            if len(finished) >= self._beams or not text:
                break
            finished[(*text, self._eot)] = total
        candidates = [
            Candidate(tokens=text[:-1], sum_logprob=total) for text, total in finished.items()
        ]
        if not candidates:
            return []
        return list(candidates[MaximumLikelihoodRanker(None).rank(candidates)].tokens)
