"""LocalAgreement against its definition, worked out on plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.jobs import DecodedWord
from whisper_stream.streamer.session.policies import LocalAgreement, common_words


def words(text: str, *, probability: float = 1.0) -> tuple[DecodedWord, ...]:
    """One word a letter, one second each."""
    return tuple(
        DecodedWord(
            text=letter,
            tokens=(ord(letter),),
            start=float(index),
            end=index + 1.0,
            probability=probability,
        )
        for index, letter in enumerate(text)
    )


@pytest.mark.parametrize(
    ("hypotheses", "expected"),
    [([], 0), (["abc"], 3), (["abc", "abd"], 2), (["abc", ""], 0), (["ab", "abc", "abd"], 2)],
)
def test_common_words(hypotheses: list[str], expected: int) -> None:
    assert common_words([words(text) for text in hypotheses]) == expected


def test_same_text_of_other_tokens_is_another_word() -> None:
    (one,) = words("a")
    other = DecodedWord(text="a", tokens=(1, 2), start=0.0, end=1.0, probability=1.0)
    assert common_words([[one], [other]]) == 0


@given(
    n=st.integers(2, 4),
    hypotheses=st.lists(st.text("ab", max_size=6), min_size=1, max_size=8),
)
def test_what_the_last_n_have_in_common_is_stable(n: int, hypotheses: list[str]) -> None:
    agreement = LocalAgreement(n, margin=0.0)
    for count, text in enumerate(hypotheses, 1):
        stable = agreement.add(words(text), 100.0)
        last = hypotheses[max(0, count - n) : count]
        if count < n:
            assert stable == 0
        else:
            assert stable == next(
                (i for i, letters in enumerate(zip(*last, strict=False)) if len(set(letters)) > 1),
                min(len(hypothesis) for hypothesis in last),
            )


def test_committed_words_leave_the_history() -> None:
    agreement = LocalAgreement(2, margin=0.0)
    agreement.add(words("abc"), 10.0)
    assert agreement.add(words("abd"), 10.0) == 2
    agreement.committed(2)
    assert [word.text for word in agreement.latest] == ["d"]
    assert agreement.add(words("de"), 10.0) == 1


@pytest.mark.parametrize(("audio", "stable"), [(3.5, 3), (3.2, 2), (2.3, 1), (0.5, 0)])
def test_words_near_the_end_of_the_audio_wait(audio: float, stable: int) -> None:
    agreement = LocalAgreement(2, margin=0.4)
    agreement.add(words("abc"), audio)
    assert agreement.add(words("abc"), audio) == stable


def test_unsure_words_wait_longer_and_hold_back_what_follows() -> None:
    agreement = LocalAgreement(2, margin=0.1, sure=0.5, doubtful_margin=2.0)
    mixed = (*words("a"), *words("ab", probability=0.2)[1:], *words("abc")[2:])
    agreement.add(mixed, 3.5)
    assert agreement.add(mixed, 3.5) == 1
    assert agreement.add(mixed, 4.5) == 3


def test_reset_forgets() -> None:
    agreement = LocalAgreement(2, margin=0.0)
    agreement.add(words("abc"), 10.0)
    agreement.reset()
    assert agreement.latest == ()
    assert agreement.add(words("abc"), 10.0) == 0


def test_one_hypothesis_agrees_with_nobody() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        LocalAgreement(1, margin=0.0)
