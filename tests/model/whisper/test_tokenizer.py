"""Tokens equal the reference's, and text never breaks inside a character."""

from __future__ import annotations

from typing import Any

import pytest
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.errors import DecodingOptionsError
from whisper_stream.model.whisper.languages import LANGUAGES, TO_LANGUAGE_CODE, language_code
from whisper_stream.model.whisper.tokenizer import Tokenizer, get_tokenizer

# The reference leaves its vocabulary files open.
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

VOCABULARIES = [(True, 99), (True, 100), (False, 99)]
SCALARS = (
    "eot sot sot_prev sot_lm no_speech no_timestamps timestamp_begin transcribe translate "
    "language task sot_sequence sot_sequence_including_notimestamps non_speech_tokens"
).split()
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="aZ '’-.,!?\n\t019éß"),
    st.text(alphabet="😀👩‍🚀🏳️‍🌈漢字かな한글ไทยعربى♪♩「」"),
)


def both(multilingual: bool, num_languages: int, **options: str | None) -> tuple[Tokenizer, Any]:
    arguments: dict[str, Any] = {"num_languages": num_languages, **options}
    return (
        get_tokenizer(multilingual, **arguments),
        whisper.tokenizer.get_tokenizer(multilingual, **arguments),
    )


@pytest.mark.parametrize(("multilingual", "num_languages"), VOCABULARIES)
@pytest.mark.parametrize("task", [None, "transcribe", "translate"])
@pytest.mark.parametrize("language", [None, "en", "de", "Mandarin", "haw"])
def test_special_ids(
    multilingual: bool, num_languages: int, task: str | None, language: str | None
) -> None:
    ours, reference = both(multilingual, num_languages, language=language, task=task)
    for name in SCALARS:
        assert getattr(ours, name) == getattr(reference, name), name
    assert dict(ours.special_tokens) == reference.special_tokens
    # The reference lists them in the order of a set.
    assert ours.all_language_tokens == tuple(sorted(reference.all_language_tokens))
    assert ours.all_language_codes == tuple(LANGUAGES)[:num_languages]
    for code, token in zip(ours.all_language_codes, ours.all_language_tokens, strict=True):
        assert ours.to_language_token(code) == token == reference.to_language_token(code)


@pytest.mark.parametrize(("multilingual", "num_languages"), VOCABULARIES)
def test_every_id_decodes_alike(multilingual: bool, num_languages: int) -> None:
    ours, reference = both(multilingual, num_languages)
    for token in range(ours.encoding.n_vocab):
        assert ours.decode([token]) == reference.decode([token])
        assert ours.decode_with_timestamps([token]) == reference.decode_with_timestamps([token])


@pytest.mark.parametrize("multilingual", [True, False])
@settings(max_examples=700, deadline=None)
@given(text=TEXTS)
def test_any_text_encodes_alike(multilingual: bool, text: str) -> None:
    ours, reference = both(multilingual, 99)
    tokens = ours.encode(text)
    assert tokens == reference.encode(text)
    assert ours.decode(tokens) == text


def test_special_names_in_text() -> None:
    tokenizer = get_tokenizer(True)
    plain = tokenizer.encode("<|endoftext|>")
    assert tokenizer.eot not in plain and tokenizer.decode(plain) == "<|endoftext|>"
    allowed = tokenizer.encode("<|endoftext|>", allowed_special={"<|endoftext|>"})
    assert allowed == [tokenizer.eot]


def test_timestamps_are_left_out_or_written() -> None:
    tokenizer = get_tokenizer(True)
    tokens = [tokenizer.timestamp_begin, *tokenizer.encode(" Hi"), tokenizer.timestamp_begin + 54]
    assert tokenizer.decode(tokens) == " Hi"
    assert tokenizer.decode_with_timestamps(tokens) == "<|0.00|> Hi<|1.08|>"


def test_languages_equal_the_reference() -> None:
    assert list(LANGUAGES.items()) == list(whisper.tokenizer.LANGUAGES.items())
    assert TO_LANGUAGE_CODE == whisper.tokenizer.TO_LANGUAGE_CODE
    assert len(LANGUAGES) == 100


def test_languages_by_code_name_and_alias() -> None:
    assert [language_code(name) for name in ("DE", "German", " burmese ", "yue")] == [
        "de",
        "de",
        "my",
        "yue",
    ]
    assert get_tokenizer(True, language="Castilian").language == "es"
    assert get_tokenizer(False, language="german").language is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"language": "germn"}, r"language 'germn' .* did you mean german"),
        ({"language": "klingon"}, r"language 'klingon' .* such as"),
        ({"language": ""}, "language ''"),
        ({"language": "yue"}, "language 'yue' has no token"),
        ({"task": "summarise"}, "task must be transcribe or translate"),
        ({"num_languages": 98}, "num_languages must be 99 or 100"),
    ],
)
def test_bad_arguments_name_their_field(arguments: dict[str, Any], expected: str) -> None:
    with pytest.raises(DecodingOptionsError, match=expected):
        get_tokenizer(True, **arguments)


def test_no_language_token_in_english_models() -> None:
    with pytest.raises(DecodingOptionsError, match="language is not set"):
        _ = get_tokenizer(False).language_token
    assert get_tokenizer(True, language="fr").language_token == 50265


def test_the_same_arguments_share_a_tokenizer() -> None:
    assert get_tokenizer(True, language="de") is get_tokenizer(True, language="de")
    assert get_tokenizer(True, language="de").encoding is get_tokenizer(True).encoding
