"""Words are cut, and their punctuation attached, as the reference does."""

from __future__ import annotations

import pytest
import whisper.timing
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.whisper.tokenizer import get_tokenizer
from whisper_stream.model.whisper.words import (
    APPEND_PUNCTUATIONS,
    PREPEND_PUNCTUATIONS,
    merge_punctuations,
    split_to_word_tokens,
)

# The reference leaves its vocabulary files open.
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

LANGUAGES = ["en", "de", "zh", "ja", "th", "lo", "my", "ko"]
SAMPLES = [
    "",
    " And so, my fellow Americans: ask not what your country can do for you.",
    " Señor “Müller-Lüdenscheidt” paid $3.50 (not €4)… didn't he?",
    "今天天气很好，我们去公园吧。",
    "これはテストです。「はい」と言った。",
    "วันนี้อากาศดี",
    "ມື້ນີ້ອາກາດດີ",
    "ဒီနေ့ ရာသီဥတု",
    " 오늘 날씨가 좋네요.",
    " emoji 👩‍🚀🏳️‍🌈 here 🜚",
]


@pytest.mark.parametrize("text", SAMPLES)
@pytest.mark.parametrize("language", LANGUAGES)
def test_split_equals_the_reference(text: str, language: str) -> None:
    check_split(text, language)


@settings(max_examples=300, deadline=None)
@given(
    text=st.one_of(
        st.text(alphabet=st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"])),
        st.text(alphabet="ab '-.,!?()\"“”漢字かなไทย👩‍🚀é "),
    ),
    language=st.sampled_from(LANGUAGES),
)
def test_split_equals_the_reference_on_any_text(text: str, language: str) -> None:
    check_split(text, language)


def check_split(text: str, language: str) -> None:
    ours = get_tokenizer(True, language=language)
    reference = whisper.tokenizer.get_tokenizer(True, language=language)
    tokens = [*ours.encode(text), ours.timestamp_begin + 10, ours.eot]
    assert split_to_word_tokens(ours, tokens, language) == reference.split_to_word_tokens(tokens)


def test_english_vocabulary_splits_at_spaces() -> None:
    tokenizer = get_tokenizer(False)
    tokens = tokenizer.encode(" Don't stop, please.")
    words, _ = split_to_word_tokens(tokenizer, tokens, None)
    assert words == [" Don't", " stop", ",", " please", "."]


@settings(max_examples=200, deadline=None)
@given(tokens=st.lists(st.integers(0, 50_256)), language=st.sampled_from(["en", "ja"]))
def test_no_token_is_lost_whatever_comes(tokens: list[int], language: str) -> None:
    tokenizer = get_tokenizer(True)
    words, word_tokens = split_to_word_tokens(tokenizer, tokens, language)
    assert len(words) == len(word_tokens)
    assert [token for part in word_tokens for token in part] == tokens


def test_default_punctuation_is_the_reference_s() -> None:
    defaults = whisper.timing.add_word_timestamps.__kwdefaults__
    assert PREPEND_PUNCTUATIONS == defaults["prepend_punctuations"]
    assert APPEND_PUNCTUATIONS == defaults["append_punctuations"]


WORDS = st.lists(
    st.one_of(
        st.sampled_from([" the", "cat", " “", "”", " (", ")", ".", ",", " -", "-", " ", "", "?!"]),
        st.sampled_from([f" {mark}" for mark in PREPEND_PUNCTUATIONS]),
        st.sampled_from(list(APPEND_PUNCTUATIONS)),
        st.text(max_size=3),
    )
)


@settings(max_examples=1_000, deadline=None)
@given(words=WORDS)
def test_merge_equals_the_reference(words: list[str]) -> None:
    alignment = [
        whisper.timing.WordTiming(word, [index], float(index), index + 1.0, 0.5)
        for index, word in enumerate(words)
    ]
    whisper.timing.merge_punctuations(alignment, PREPEND_PUNCTUATIONS, APPEND_PUNCTUATIONS)
    merged = merge_punctuations(words)
    expected = [timing for timing in alignment if timing.word]
    assert [word.text for word in merged] == [timing.word for timing in expected]
    assert [word.core for word in merged] == [int(timing.start) for timing in expected]
    assert [list(word.members) for word in merged] == [timing.tokens for timing in expected]


def test_merge_by_hand() -> None:
    merged = merge_punctuations([" He", " said", " “", " yes", ".", "”", " (", " loudly", ")"])
    assert [word.text for word in merged] == [" He", " said", " “ yes.”", " ( loudly)"]
    assert [word.members for word in merged] == [(0,), (1,), (2, 3, 4, 5), (6, 7, 8)]
    assert [word.core for word in merged] == [0, 1, 3, 7]
