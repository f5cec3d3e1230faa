"""The masks on logits are those of the reference, for any past and any logits."""

from __future__ import annotations

import pytest
import torch
import whisper.decoding as reference
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from whisper_stream.model.decoding.filters import (
    ApplyTimestampRules,
    LogitFilter,
    SuppressBlank,
    SuppressTokens,
)
from whisper_stream.model.whisper.tokenizer import get_tokenizer

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

OURS = get_tokenizer(False)
VOCABULARY = 51864
BEGIN = OURS.timestamp_begin
SAMPLE_BEGIN = 3

_text = st.sampled_from([0, 220, 1000, 50256])  # the last one is the end of the text
_timestamp = st.integers(BEGIN, BEGIN + 1500)
_token = st.one_of(_text, _timestamp)


@st.composite
def rows_of_tokens(draw: st.DrawFn) -> Tensor:
    rows, sampled = draw(st.integers(1, 4)), draw(st.integers(0, 7))
    return torch.tensor(
        [[50257, 50362, 7] + draw(st.lists(_token, min_size=sampled, max_size=sampled))
         for _ in range(rows)]
    )  # fmt: skip


def random_logits(rows: int, seed: int, lift: float) -> Tensor:
    """``lift`` raises the timestamps, so that rule 5 is met on both sides."""
    logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    logits[:, BEGIN:] += lift
    return logits


@settings(max_examples=60, deadline=None)
@given(
    tokens=rows_of_tokens(),
    seed=st.integers(0, 2**16),
    lift=st.floats(-6, 6),
    limit=st.sampled_from([None, 0, 50, 1500]),
)
def test_timestamp_rules_mask_what_the_reference_masks(
    tokens: Tensor, seed: int, lift: float, limit: int | None
) -> None:
    logits = random_logits(len(tokens), seed, lift)
    expected = logits.clone()
    theirs = whisper.tokenizer.get_tokenizer(False)
    reference.ApplyTimestampRules(theirs, SAMPLE_BEGIN, limit).apply(expected, tokens)
    ApplyTimestampRules(OURS, SAMPLE_BEGIN, limit).apply(logits, tokens)
    assert torch.equal(logits, expected)


def allowed(logits: Tensor) -> set[int]:
    return set(torch.where(logits[0] > -torch.inf)[0].tolist())


def filtered(rule: LogitFilter, sampled: list[int], logits: Tensor | None = None) -> set[int]:
    given_logits = torch.zeros(1, VOCABULARY) if logits is None else logits
    rule.apply(given_logits, torch.tensor([[1, 2, 3, *sampled]]))
    return allowed(given_logits)


def text_is_likelier() -> Tensor:
    logits = torch.zeros(1, VOCABULARY)
    logits[:, :BEGIN] = 20.0
    return logits


def test_first_token_is_a_timestamp_up_to_the_limit() -> None:
    rule = ApplyTimestampRules(OURS, SAMPLE_BEGIN, 50)
    assert filtered(rule, [], text_is_likelier()) == set(range(BEGIN, BEGIN + 51))


def test_text_follows_an_opening_timestamp() -> None:
    rule = ApplyTimestampRules(OURS, SAMPLE_BEGIN, 50)
    assert filtered(rule, [BEGIN + 4], text_is_likelier()) == set(range(BEGIN)) - {
        OURS.no_timestamps
    }


def test_after_a_closing_timestamp_comes_one_as_late_or_the_end() -> None:
    rule = ApplyTimestampRules(OURS, SAMPLE_BEGIN, 50)
    got = filtered(rule, [BEGIN, 1000, BEGIN + 100], text_is_likelier())
    assert min(token for token in got if token >= BEGIN) == BEGIN + 100
    assert all(token >= OURS.eot for token in got) and OURS.eot in got


def test_segments_have_a_length() -> None:
    rule = ApplyTimestampRules(OURS, SAMPLE_BEGIN, 50)
    got = filtered(rule, [BEGIN + 9, 1000], text_is_likelier())
    assert min(token for token in got if token >= BEGIN) == BEGIN + 10


def test_timestamps_together_outweigh_the_likeliest_text() -> None:
    rule = ApplyTimestampRules(OURS, SAMPLE_BEGIN, 50)
    logits = torch.zeros(1, VOCABULARY)  # 1,500 timestamps against single text tokens
    assert filtered(rule, [BEGIN, 1000], logits) == set(range(BEGIN + 1, VOCABULARY))


def test_blank_is_barred_at_the_start_only() -> None:
    rule = SuppressBlank(OURS, SAMPLE_BEGIN)
    everything = set(range(VOCABULARY))
    assert everything - filtered(rule, []) == {220, OURS.eot}
    assert filtered(rule, [1000]) == everything


@pytest.mark.parametrize("suppressed", [[5], [0, 17, VOCABULARY - 1]])
def test_suppressed_tokens_are_barred_at_every_step(suppressed: list[int]) -> None:
    rule = SuppressTokens(suppressed)
    for sampled in ([], [1000, 2]):
        assert filtered(rule, sampled) == set(range(VOCABULARY)) - set(suppressed)
