"""The choice of the next token, and of the result among several finished texts of one window.

Letters in shape comments: A windows, G candidates of each, R = A * G rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Candidate",
    "GreedyDecoder",
    "MaximumLikelihoodRanker",
    "TokenDecoder",
    "likeliest",
    "logprobs_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    tokens: tuple[int, ...]  # sampled ones, without the end of the text
    sum_logprob: float  # of them all, and of the end


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


_ROWS = 8  # of logits, 1.6 MB, which a core's cache holds


class TokenDecoder(Protocol):
    """Chooses tokens through one run over a batch; a new run needs a new one."""

    def update(self, tokens: Tensor, logits: Tensor) -> tuple[Tensor, bool]:
        """``tokens`` [R, T] so far, ``logits`` [R, V] of the next -> tokens [R, T + 1], and if all is done."""
        ...

    def finalize(self, tokens: Tensor) -> list[list[Candidate]]:
        """``tokens`` [R, T] at the end of the run -> the candidates of every window."""
        ...


class GreedyDecoder:
    """The likeliest token at temperature 0, else a sample of the distribution at that temperature.

    Samples come from ``generator``, or PyTorch's own when None.
    """

    def __init__(
        self,
        *,
        temperature: float,
        eot: int,
        sample_begin: int,
        group: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        self._temperature = temperature
        self._eot = eot
        self._sample_begin = sample_begin
        self._group = group
        self._generator = generator
        self._sums: list[float] | None = (
            None  # log-probabilities so far, by row; set at the first update
        )

    def update(self, tokens: Tensor, logits: Tensor) -> tuple[Tensor, bool]:
        chosen = self._choose(logits)  # [R]
        logits = logits.float()
        logprobs = logits.gather(1, chosen[:, None])[:, 0] - logits.logsumexp(dim=-1)  # [R]
        ended = (tokens[:, -1] == self._eot).tolist()
        if self._sums is None:
            self._sums = [0.0] * len(ended)
        for row, logprob in enumerate(logprobs.tolist()):
            if ended[row]:
                chosen[row] = self._eot
            else:
                self._sums[row] += logprob
        done = bool((chosen == self._eot).all())
        return torch.cat([tokens, chosen[:, None]], dim=1), done

    def _choose(self, logits: Tensor) -> Tensor:
        if self._temperature == 0:
            return likeliest(logits)
        scaled = (logits / self._temperature).log_softmax(dim=-1)
        return torch.multinomial(scaled.softmax(dim=-1), 1, generator=self._generator)[:, 0]

    def finalize(self, tokens: Tensor) -> list[list[Candidate]]:
        assert self._sums is not None, "update comes before finalize"
        candidates = [
            _candidate(row, total, self._eot)
            for row, total in zip(tokens[:, self._sample_begin :].tolist(), self._sums, strict=True)
        ]
        return [candidates[at : at + self._group] for at in range(0, len(candidates), self._group)]


def likeliest(logits: Tensor) -> Tensor:
    """``logits`` [R, V] -> the first of the greatest of every row [R]."""
    if logits.is_cuda:
        return logits.argmax(dim=-1)
    return torch.from_numpy(logits.numpy().argmax(axis=-1))  # numpy's is ten times as fast


def logprobs_of(tokens: Tensor, logits: Tensor) -> Tensor:
    """The log-probability of each of ``tokens`` [R] by its row of ``logits`` [R, V] -> [R]

    Few rows at a time, since ``logsumexp`` makes copies of all it is given; but never a single one of
    several, whose sum would be shared by the cores and rounded differently.
    """
    parts = logits.tensor_split(-(-len(logits) // _ROWS))
    sums = torch.cat([rows.logsumexp(dim=-1) for rows in parts])
    return logits.gather(1, tokens[:, None])[:, 0] - sums


def _candidate(sampled: Sequence[int], total: float, eot: int) -> Candidate:
    end = sampled.index(eot) if eot in sampled else len(sampled)
    return Candidate(tokens=tuple(sampled[:end]), sum_logprob=total)
