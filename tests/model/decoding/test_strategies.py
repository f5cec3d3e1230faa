"""Choice of tokens and ranking of texts, against the reference's, on random logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import whisper.decoding as reference
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from whisper_stream.model.decoding.strategies import (
    Candidate,
    GreedyDecoder,
    MaximumLikelihoodRanker,
    logprobs_of,
)

VOCABULARY, EOT, SAMPLE_BEGIN = 12, 11, 2


def steps_of_logits(seed: int, steps: int, rows: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, VOCABULARY, generator=generator) * 2 for _ in range(steps)]


def trimmed(sequences: Sequence[Tensor]) -> list[tuple[int, ...]]:
    sampled = [sequence[SAMPLE_BEGIN:].tolist() for sequence in sequences]
    return [tuple(tokens[: tokens.index(EOT)]) for tokens in sampled]


@pytest.mark.parametrize("temperature", [0.0, 0.4, 1.0])
def test_greedy_and_samples_are_the_references_from_the_same_seed(temperature: float) -> None:
    ours = GreedyDecoder(temperature=temperature, eot=EOT, sample_begin=SAMPLE_BEGIN, group=2)
    other = reference.GreedyDecoder(temperature, EOT)
    tokens = torch.zeros(6, SAMPLE_BEGIN, dtype=torch.int64)
    their_tokens, sums = tokens.clone(), torch.zeros(6)
    for step, logits in enumerate(steps_of_logits(7, 12, 6)):
        torch.manual_seed(step)
        tokens, done = ours.update(tokens, logits)
        torch.manual_seed(step)
        their_tokens, their_done = other.update(their_tokens, logits, sums)
        assert torch.equal(tokens, their_tokens)
        assert done == bool(their_done)
    got = ours.finalize(tokens)
    assert [len(group) for group in got] == [2, 2, 2]
    flat = [candidate for group in got for candidate in group]
    finished, _ = other.finalize(their_tokens, sums)
    assert [candidate.tokens for candidate in flat] == trimmed(finished)
    np.testing.assert_allclose([one.sum_logprob for one in flat], sums.tolist(), rtol=1e-5)


def test_samples_follow_the_distribution_at_their_temperature() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    generator = torch.Generator().manual_seed(0)
    decoder = GreedyDecoder(temperature=0.5, eot=3, sample_begin=0, generator=generator)
    rows = 20_000
    tokens, _ = decoder.update(torch.zeros(rows, 1, dtype=torch.int64), logits.repeat(rows, 1))
    counts = torch.bincount(tokens[:, 1], minlength=4).numpy()
    chances = (logits[0] / 0.5).softmax(dim=-1).numpy()
    # chi-square with 3 degrees of freedom: 16.3 is passed by chance once in a thousand
    assert float(((counts - rows * chances) ** 2 / (rows * chances)).sum()) < 16.3


_groups = st.lists(
    st.tuples(st.integers(1, 30), st.floats(-60, -0.01)), min_size=1, max_size=6
)  # (length, log-probability)


@given(group=_groups, penalty=st.sampled_from([None, 0.0, 0.6, 1.0]))
def test_ranking_is_the_references(group: list[tuple[int, float]], penalty: float | None) -> None:
    candidates = [Candidate(tokens=(1,) * length, sum_logprob=logprob) for length, logprob in group]
    tokens: Any = [[torch.ones(length) for length, _ in group]]
    expected = reference.MaximumLikelihoodRanker(penalty).rank(
        tokens, [[logprob for _, logprob in group]]
    )
    assert MaximumLikelihoodRanker(penalty).rank(candidates) == expected[0]


def test_a_candidate_without_tokens_can_be_ranked() -> None:
    empty = Candidate(tokens=(), sum_logprob=-0.5)
    assert MaximumLikelihoodRanker(None).rank([empty, Candidate(tokens=(1,), sum_logprob=-1)]) == 0


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 17])
def test_log_probabilities_of_tokens(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, 51_864, generator=generator) * 5
    logits[:, 7] = -torch.inf
    tokens = torch.randint(8, 51_864, (rows,), generator=generator)
    exact = logits.double().log_softmax(dim=-1)[range(rows), tokens]
    found = logprobs_of(tokens, logits)
    assert found.double().numpy() == pytest.approx(exact.numpy(), abs=1e-5)
    # in parts and as a whole: the same bits
    assert torch.equal(found, logits[range(rows), tokens] - logits.logsumexp(dim=-1))
