"""Tests of the rule that decides whether a text is decoded again."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from whisper_stream.model.decoding.fallback import TEMPERATURES, FallbackPolicy, compression_ratio

OFFLINE = FallbackPolicy()
STREAMS = FallbackPolicy(rejects_repeats_over_silence=True)


@dataclass(frozen=True, kw_only=True)
class Scores:
    avg_logprob: float = -0.3
    no_speech_prob: float = 0.0
    compression_ratio: float = 1.2


def test_temperatures_rise_to_one() -> None:
    assert TEMPERATURES == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)


@pytest.mark.parametrize("policy", [OFFLINE, STREAMS])
@pytest.mark.parametrize(
    ("scores", "fails"),
    [
        (Scores(), False),
        (Scores(avg_logprob=-1.0, no_speech_prob=0.6, compression_ratio=2.4), False),
        (Scores(avg_logprob=-1.1), True),
        (Scores(compression_ratio=2.5), True),
        (Scores(compression_ratio=2.5, no_speech_prob=0.9), True),
        (Scores(avg_logprob=-1.1, no_speech_prob=0.9), False),
    ],
)
def test_guesses_and_repetitions_fail(policy: FallbackPolicy, scores: Scores, fails: bool) -> None:
    assert policy.has_failed(scores) is fails


def test_only_streams_reject_a_repetition_over_silence() -> None:
    scores = Scores(avg_logprob=-1.1, no_speech_prob=0.9, compression_ratio=2.5)
    assert not OFFLINE.has_failed(scores)
    assert STREAMS.has_failed(scores)


def test_a_loop_that_the_decoder_found_fails() -> None:
    assert OFFLINE.has_failed(Scores(), looped=True)


def test_tests_that_are_switched_off_never_fail() -> None:
    policy = FallbackPolicy(
        compression_ratio_threshold=None, logprob_threshold=None, no_speech_threshold=None
    )
    assert not policy.has_failed(Scores(avg_logprob=-9.0, compression_ratio=9.0))
    assert not policy.is_silence(Scores(no_speech_prob=1.0))


def test_silence_is_no_speech_under_a_text_that_is_not_sure() -> None:
    assert OFFLINE.is_silence(Scores(avg_logprob=-1.1, no_speech_prob=0.9))
    assert not OFFLINE.is_silence(Scores(avg_logprob=-0.3, no_speech_prob=0.9))
    assert not OFFLINE.is_silence(Scores(avg_logprob=-1.1))


def test_compression_ratio_of_text() -> None:
    assert compression_ratio("") == 0.0
    assert compression_ratio("la " * 100) > 2.4
