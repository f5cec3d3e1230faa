"""Error counts of both normalisations."""

from __future__ import annotations

import pytest
from whisper_stream.clients.tools.scoring import (
    ErrorCount,
    Scorer,
    count_letter_errors,
    letters_and_digits,
)


def test_word_errors_of_english_disregard_spelling() -> None:
    count = Scorer("en").count(["Mr. Smith won't colour it"], "mister Smith will not color them")
    assert count == ErrorCount(errors=1, length=6)
    assert count.rate == pytest.approx(1 / 6)


def test_the_reference_that_fits_best_counts() -> None:
    assert Scorer("en").count(["2:30 p.m.", "half past two"], "Half past two.") == ErrorCount(0, 3)


def test_zeros_at_the_front_count_among_digits_read_one_by_one() -> None:
    spoken = "one zero zero zero one nine oh two one oh zero one eight zero three"
    assert Scorer("en").count([spoken], "1,0001. 90210. 01803.") == ErrorCount(0, 15)


@pytest.mark.parametrize("said", ["4. 0. 7. 1. 9.", "40719", "four, oh seven one nine", "40,719"])
def test_digits_read_one_by_one_may_be_written_as_a_number(said: str) -> None:
    assert Scorer("en").count(["four zero seven one nine"], said) == ErrorCount(0, 5)


def test_errors_are_counted_in_characters_where_words_have_no_spaces() -> None:
    scorer = Scorer("zh")
    assert scorer.by_character
    assert scorer.count(["甚至出现"], "甚至,出观") == ErrorCount(errors=1, length=4)


def test_other_languages_keep_their_letters() -> None:
    scorer = Scorer("de")
    assert not scorer.by_character
    assert scorer.count(["Der schöne Raum."], "der schone raum") == ErrorCount(1, 3)


def test_where_nothing_is_said_every_word_is_one_too_many() -> None:
    count = Scorer("en").count([""], "thank you")
    assert count == ErrorCount(errors=2, length=0)
    assert count.rate is None
    assert Scorer("en").count(["a b"], "") == ErrorCount(2, 2)


def test_words_are_casefolded_letters_and_digits() -> None:
    words = letters_and_digits("Don’t — STOP: 3.5 Straße!").split()
    assert words == ["dont", "stop", "3", "5", "strasse"]
    assert letters_and_digits("किताब।").split() == ["किताब"]  # its vowel signs are no letters
    assert count_letter_errors(["我们走"], "我们， 来！", "zh") == ErrorCount(1, 3)


def test_letter_errors_are_counted_against_the_reference_that_fits_best() -> None:
    assert count_letter_errors(["ask not what"], " Ask nut, what now", "en") == ErrorCount(2, 3)
    assert count_letter_errors(
        ["in 1990", "in nineteen ninety"], "In nineteen ninety.", "en"
    ) == ErrorCount(0, 3)
    assert count_letter_errors(["one two"], "", "en") == ErrorCount(2, 2)
    assert count_letter_errors([], "word", "en") is None
    assert count_letter_errors(["…"], "word", "en") is None
