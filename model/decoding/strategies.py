"""Which of several finished texts of one window is the result.

How the next token is chosen: the likeliest, a sample, or those of a beam search.

Letters in shape comments: A windows, G candidates of each, R = A * G rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "BeamSearchDecoder",
    "Candidate",
    "GreedyDecoder",
    "MaximumLikelihoodRanker",
    "SequenceRanker",
    "TokenDecoder",
    "likeliest",
    "logprobs_of",
]


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


_Sequence = tuple[int, ...]

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


class BeamSearchDecoder:
    """Beam search that goes on until ``round(beam_size * patience)`` texts of a window have ended.

    Source: Kasai et al., "A Call for Clarity in Beam Search" (arXiv:2204.05424). ``reorder`` is told
    from which row each new row goes on (see ``Inference.reorder``).
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
        self._max_candidates = round(beam_size * (patience or 1.0))
        self._sums: Tensor | None = None  # [R] log-probabilities so far; set at the first update
        self._finished: list[dict[_Sequence, float]] = []  # one a window; with the end token

    def update(self, tokens: Tensor, logits: Tensor) -> tuple[Tensor, bool]:
        if self._sums is None:
            self._sums = torch.zeros(tokens.shape[0], device=logits.device)
            self._finished = [{} for _ in range(tokens.shape[0] // self._beam_size)]
        logprobs = logits.float().log_softmax(dim=-1)
        # One more than beams, so that each can end and still go on otherwise.
        best = logprobs.topk(self._beam_size + 1, dim=-1)
        scores = (self._sums[:, None] + best.values).tolist()  # [R, beam_size + 1]
        choices = best.indices.tolist()
        pasts = [tuple(row) for row in tokens.tolist()]

        rows: list[_Sequence] = []
        sources: list[int] = []
        sums: list[float] = []
        for window, finished in enumerate(self._finished):
            ranked, origin = self._extend(window, pasts, scores, choices)
            alive, ended = self._divide(ranked)
            for sequence in alive:
                rows.append(sequence)
                sources.append(origin[sequence])
                sums.append(ranked[sequence])
            for sequence in ended:
                if len(finished) < self._max_candidates:
                    finished[sequence] = ranked[sequence]
        self._sums = torch.tensor(sums, device=logits.device)
        self._reorder(sources)
        done = all(len(finished) >= self._max_candidates for finished in self._finished)
        return torch.tensor(rows, device=tokens.device), done

    def _extend(
        self,
        window: int,
        pasts: list[_Sequence],
        scores: list[list[float]],
        choices: list[list[int]],
    ) -> tuple[dict[_Sequence, float], dict[_Sequence, int]]:
        """Every continuation of a window's beams with its score, best first, and the row it extends.

        Beams that say the same (all do at the start) count once.
        """
        found: dict[_Sequence, float] = {}
        origin: dict[_Sequence, int] = {}
        for row in range(window * self._beam_size, (window + 1) * self._beam_size):
            for score, token in zip(scores[row], choices[row], strict=True):
                sequence = (*pasts[row], token)
                found[sequence] = score
                origin[sequence] = row
        order = sorted(found, key=found.__getitem__, reverse=True)
        return {sequence: found[sequence] for sequence in order}, origin

    def _divide(self, ranked: dict[_Sequence, float]) -> tuple[list[_Sequence], list[_Sequence]]:
        """The continuations that go on, one a beam, and those that ended and rank above the last."""
        alive: list[_Sequence] = []
        ended: list[_Sequence] = []
        for sequence in ranked:
            if sequence[-1] == self._eot:
                ended.append(sequence)
                continue
            alive.append(sequence)
            if len(alive) == self._beam_size:
                break
        return alive, ended

    def finalize(self, tokens: Tensor) -> list[list[Candidate]]:
        assert self._sums is not None, "update comes before finalize"
        rows = tokens.tolist()
        sums = self._sums.cpu().numpy().reshape(-1, self._beam_size)  # [A, G]
        for window, finished in enumerate(self._finished):
            # too few have ended: the best of the rest stand in
            for beam in np.argsort(sums[window])[::-1]:
                if len(finished) >= self._beam_size:
                    break
                sequence = (*rows[window * self._beam_size + int(beam)], self._eot)
                finished[sequence] = float(sums[window, beam])
        return [
            [
                _candidate(sequence[self._sample_begin :], total, self._eot)
                for sequence, total in finished.items()
            ]
            for finished in self._finished
        ]


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
