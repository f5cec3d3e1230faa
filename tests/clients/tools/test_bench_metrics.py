"""Figures of event logs written by hand, whose values can be worked out on paper."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from whisper_stream.clients.tools.bench_metrics import (
    Erasure,
    committed_words,
    count_retracted,
    erasure,
    exact_spelling,
    spelling,
    spoken_ends,
)
from whisper_stream.clients.tools.clips import SpokenWord
from whisper_stream.streamer.config import SAMPLE_RATE
from whisper_stream.streamer.events import Commit, Done, Event, Partial, SegmentClosed, Word
from whisper_stream.streamer.simulator import TimedEvent


def words(text: str, first: int = 0) -> tuple[Word, ...]:
    """One word a second, the first in second ``first``; each half a second long."""
    return tuple(
        Word(
            text=f" {word}",
            start_sample=(first + i) * SAMPLE_RATE,
            end_sample=(first + i) * SAMPLE_RATE + SAMPLE_RATE // 2,
            probability=0.9,
        )
        for i, word in enumerate(text.split())
    )


def partial(text: str, first: int = 0) -> Partial:
    return Partial(words=words(text, first))


def commit(text: str, first: int = 0) -> Commit:
    return Commit(words=words(text, first))


def segment(text: str, first: int = 0) -> SegmentClosed:
    return SegmentClosed(
        segment_id=1,
        words=words(text, first),
        start_sample=0,
        end_sample=SAMPLE_RATE,
        language="en",
        avg_logprob=0.0,
        no_speech_prob=0.0,
        compression_ratio=1.0,
        temperature=0.0,
    )


def timed(*events: tuple[float, Event]) -> list[TimedEvent]:
    return [TimedEvent(time, event) for time, event in events]


def test_a_word_is_first_shown_in_a_partial_or_with_its_commit() -> None:
    log = timed(
        (1.0, partial("The cut")),
        (1.5, partial("the cat")),
        (2.0, commit("The")),
        (2.0, partial("cat sat", 1)),
        (3.0, commit("cat sat down", 1)),
    )
    found = committed_words(log)
    assert [word.text for word in found] == [" The", " cat", " sat", " down"]
    assert [word.shown for word in found] == [1.0, 1.5, 2.0, 3.0]
    assert [word.committed for word in found] == [2.0, 3.0, 3.0, 3.0]


def test_the_same_word_elsewhere_is_another() -> None:
    log = timed((1.0, partial("no")), (2.0, commit("no")), (4.0, commit("no", 2)))
    assert [word.shown for word in committed_words(log)] == [1.0, 4.0]


def test_a_word_that_came_went_and_came_again_was_first_shown_when_it_first_came() -> None:
    log = timed((1.0, partial("sat")), (2.0, partial("sad")), (3.0, partial("sat")))
    (word,) = committed_words([*log, *timed((4.0, commit("sat")))])
    assert (word.shown, word.committed) == (1.0, 4.0)


def test_text_that_only_grows_has_no_erasure() -> None:
    log: list[Event] = [
        partial("a"),
        partial("a b"),
        commit("a"),
        partial("b c", 1),
        commit("b c d", 1),
    ]
    assert erasure(log) == Erasure(shown=4, changed=0)
    assert erasure(log).share == 0.0


def test_words_replaced_and_dropped_are_changed() -> None:
    # "cut" becomes "cat"; "mat" is dropped; at the end "the cat" stays
    log: list[Event] = [
        partial("the cut"),
        partial("the cat mat"),
        partial("the cat"),
        commit("the cat"),
    ]
    assert erasure(log) == Erasure(shown=4, changed=2)
    assert erasure(log).share == pytest.approx(0.5)


def test_a_word_is_changed_by_a_commit_too() -> None:
    log: list[Event] = [partial("cut"), commit("cat"), Partial(words=())]
    assert erasure(log) == Erasure(2, 1)


def test_a_partial_left_without_a_commit_is_changed() -> None:
    assert erasure([partial("thank you"), Partial(words=())]) == Erasure(2, 2)


def test_a_word_moved_by_a_new_one_before_it_has_not_changed() -> None:
    log: list[Event] = [partial("cat sat"), partial("the cat sat"), commit("the cat sat")]
    assert erasure(log) == Erasure(shown=3, changed=0)


def test_case_and_punctuation_change_a_word_only_when_asked_for() -> None:
    log: list[Event] = [partial("Ask not."), partial("ask not what"), commit("ask not what")]
    assert erasure(log) == Erasure(shown=3, changed=0)
    assert erasure(log, exact_spelling) == Erasure(shown=5, changed=2)


def test_mere_punctuation_is_no_word() -> None:
    log: list[Event] = [partial("so ,"), commit("so")]
    assert erasure(log) == Erasure(shown=1, changed=0)
    assert spelling(" -- ") == ""


def test_nothing_shown_has_no_erasure() -> None:
    assert erasure([]).share == 0.0


def test_a_clean_log_retracts_nothing() -> None:
    log: list[Event] = [
        commit("a b"),
        partial("c", 2),
        commit("c", 2),
        segment("a b c"),
        commit("d", 3),
    ]
    assert count_retracted([*log, segment("d", 3), Done(samples=1, words=4)]) == 0


@pytest.mark.parametrize(
    ("log", "count"),
    [
        ([commit("a b"), segment("a")], 1),  # dropped
        ([commit("a b"), segment("a c")], 1),  # replaced
        ([commit("A b."), segment("a b")], 2),  # to the letter
        ([commit("a b"), commit("c", 1)], 1),  # committed over the audio of "b"
        ([commit("a b c"), partial("x y")], 2),  # shown before what is committed
        ([commit("a b"), segment("a b"), Done(samples=1, words=1)], 1),  # forgotten
    ],
)
def test_what_contradicts_a_commit_is_counted(log: Sequence[Event], count: int) -> None:
    assert count_retracted(log) == count


def seconds(text: str) -> list[SpokenWord]:
    return [SpokenWord(text=word, start=i, end=i + 0.5) for i, word in enumerate(text.split())]


def test_words_find_their_ends_whatever_their_case() -> None:
    ends = spoken_ends([" And", " so,", " my"], seconds("and so my"))
    assert ends == [0.5, 1.5, 2.5]


def test_other_words_have_no_end_and_those_after_them_keep_theirs() -> None:
    ends = spoken_ends([" a", " x", " c", " extra", " d", ","], seconds("a b c d"))
    assert ends == [0.5, None, 2.5, None, 3.5, None]


def test_by_character_words_may_be_cut_elsewhere() -> None:
    spoken = [
        SpokenWord(text="甚至", start=0.0, end=1.0),
        SpokenWord(text="出现", start=1.0, end=3.0),
    ]
    ends = spoken_ends(["甚", "至出", "现。"], spoken, by_character=True)
    assert ends == [0.5, 2.0, 3.0]


def test_nothing_spoken_has_no_ends() -> None:
    assert spoken_ends([" a"], []) == [None]
    assert spoken_ends([], seconds("a")) == []
