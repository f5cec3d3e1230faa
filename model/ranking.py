"""Which of several finished texts of one window is the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["Candidate", "MaximumLikelihoodRanker", "SequenceRanker"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    tokens: tuple[int, ...]  # sampled ones, without the end of the text
    sum_logprob: float  # of them all, and of the end


class SequenceRanker(Protocol):
    def rank(self, candidates: Sequence[Candidate]) -> int:
        """The index of the best of ``candidates``, which belong to one window."""
        ...


class MaximumLikelihoodRanker:
    """The likeliest candidate, after allowing for length.

    ``length_penalty`` None divides the log-probability by the length; otherwise it is the alpha of
    Wu et al., "Google's Neural Machine Translation System" (2016), equation 14.
    """

    def __init__(self, length_penalty: float | None) -> None:
        self._length_penalty = length_penalty

    def rank(self, candidates: Sequence[Candidate]) -> int:
        return int(np.argmax([self._score(candidate) for candidate in candidates]))

    def _score(self, candidate: Candidate) -> float:
        length = len(candidate.tokens)
        if self._length_penalty is None:
            return candidate.sum_logprob / max(1, length)
        penalty: float = ((5 + length) / 6) ** self._length_penalty
        return candidate.sum_logprob / penalty
