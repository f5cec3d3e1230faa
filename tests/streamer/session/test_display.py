"""Which words of the tail are shown: none that the end of the audio may cut, and none twice withdrawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.jobs import DecodedWord
from whisper_stream.streamer.session.commit import PartialFilter


def tail(*words: tuple[str, float]) -> list[DecodedWord]:
    return [
        DecodedWord(text=text, tokens=(ord(text[0]),), start=0.0, end=end, probability=1.0)
        for text, end in words
    ]


def shown(display: PartialFilter, words: list[DecodedWord], seconds: float) -> str:
    return "".join(word.text for word in display.add(words, seconds))


def test_words_at_the_end_of_the_audio_are_held_back() -> None:
    display = PartialFilter(0.25)
    assert shown(display, tail(("a", 1.0), ("b", 1.75), ("c", 1.9)), 2.0) == "ab"


def test_what_follows_a_word_held_back_is_too() -> None:
    """Nobody sees a sentence with a hole."""
    assert shown(PartialFilter(0.25), tail(("a", 1.0), ("b", 1.9), ("c", 1.0)), 2.0) == "a"


def test_a_word_once_shown_stays_while_it_is_said() -> None:
    display = PartialFilter(0.25)
    assert shown(display, tail(("a", 1.0), ("b", 1.5)), 2.0) == "ab"
    # its end has moved up to the end of the audio
    assert shown(display, tail(("a", 1.0), ("b", 2.4), ("c", 2.4)), 2.4) == "ab"
    # another word in its place has to wait like any other
    assert shown(display, tail(("a", 1.0), ("x", 2.8)), 2.8) == "a"


def test_committed_words_leave_what_was_shown() -> None:
    display = PartialFilter(0.25)
    display.add(tail(("a", 1.0), ("b", 1.5)), 2.0)
    display.committed(1)
    assert shown(display, tail(("b", 2.4)), 2.4) == "b"
    display.committed(5)  # more than was shown: it was held back until now
    assert shown(display, tail(("b", 2.4)), 2.4) == ""


def test_after_a_reset_nothing_was_shown() -> None:
    display = PartialFilter(0.25)
    display.add(tail(("a", 1.0)), 2.0)
    display.reset()
    assert shown(display, tail(("a", 1.9)), 2.0) == ""


def test_without_a_margin_all_is_shown_that_ends_in_the_audio() -> None:
    assert shown(PartialFilter(0.0), tail(("a", 1.0), ("b", 2.0)), 2.0) == "ab"


@given(
    margin=st.floats(0.0, 1.0),
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.0, 4.0)), max_size=5),
            st.floats(0.0, 4.0),
            st.integers(0, 3),
        ),
        max_size=6,
    ),
)
def test_what_is_shown_is_the_beginning_of_what_is_said(
    margin: float, steps: list[tuple[list[tuple[str, float]], float, int]]
) -> None:
    display = PartialFilter(margin)
    for said, seconds, committed in steps:
        words = tail(*said)
        found = display.add(words, seconds)
        assert found == tuple(words[: len(found)])
        # and at least all that ends early enough
        early = next((i for i, w in enumerate(words) if w.end > seconds - margin), len(words))
        assert len(found) >= early
        display.committed(committed)
