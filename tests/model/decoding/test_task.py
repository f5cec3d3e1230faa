"""``decode`` and ``detect_language`` against the reference, with real weights and recordings."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import whisper
from torch import Tensor
from whisper_stream.model.decoding.inference import EncodedAudio
from whisper_stream.model.decoding.task import DecodingOptions, decode, detect_language
from whisper_stream.model.errors import DecodingOptionsError
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.whisper.mel import log_mel_spectrogram

from ...helpers.reference import our_model, reference_model

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

DATA = Path(__file__).parents[2] / "data"
JFK, QUILTER, CUTTER = "en-speech-jfk.wav", "en-read-1272-quilter.flac", "en-read-7902-cutter.flac"
GERMAN, CHINESE, DOG = "de-read-portal.flac", "zh-read-jiaoyi.flac", "noise-dog.flac"


@cache
def mel_of(clip: str) -> Tensor:
    return log_mel_spectrogram(load_audio(DATA / clip), padding=480_000)[:, :3000]


@cache
def encoded(name: str, clip: str) -> EncodedAudio:
    with torch.inference_mode():
        return EncodedAudio.from_mel(our_model(name), mel_of(clip)[None])


@cache
def features_of(name: str, clip: str) -> Tensor:
    """The reference's features."""
    with torch.inference_mode():
        features: Tensor = reference_model(name).encoder(mel_of(clip)[None])
    return features


def assert_same_as_reference(name: str, clip: str, **options: Any) -> None:
    if name.endswith(".en"):
        options["language"] = "en"
    got = decode(our_model(name), encoded(name, clip), **options)[0]
    with torch.inference_mode():
        expected = whisper.decode(
            reference_model(name),
            features_of(name, clip),
            whisper.DecodingOptions(fp16=False, **options),
        )[0]
    assert got.tokens == expected.tokens
    assert (got.text, got.language) == (expected.text, expected.language)
    assert got.temperature == expected.temperature
    assert got.compression_ratio == expected.compression_ratio
    assert got.avg_logprob == pytest.approx(expected.avg_logprob, abs=1e-4)
    assert got.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"without_timestamps": True},
        {"beam_size": 5},
        {"beam_size": 5, "patience": 2.0},
        {"beam_size": 3, "length_penalty": 0.6, "without_timestamps": True},
        {"prompt": "Rome, Greece, and Mr. Quilter's other friends."},
        {"prompt": list(range(400, 700))},  # more than fit
        {"prefix": "Mr. Quilt"},
        {"prefix": list(range(300, 320)), "sample_len": 214},  # cut to 10
        {"sample_len": 5},
        {"suppress_tokens": "-1,13,11"},
        {"suppress_tokens": ""},
        {"suppress_blank": False, "max_initial_timestamp": None},
        {"max_initial_timestamp": 0.1},
    ],
    ids=str,
)
def test_tokens_are_the_references(options: dict[str, Any]) -> None:
    assert_same_as_reference("tiny.en", QUILTER, **options)


@pytest.mark.parametrize("clip", [JFK, CUTTER, DOG])
def test_tokens_of_other_recordings_are_the_references(clip: str) -> None:
    assert_same_as_reference("tiny.en", clip)


@pytest.mark.parametrize("clip", [GERMAN, CHINESE])
@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_multilingual_tokens_are_the_references(clip: str, task: str) -> None:
    assert_same_as_reference("base", clip, task=task)


def test_multilingual_beam_search_is_the_references() -> None:
    assert_same_as_reference("base", GERMAN, beam_size=5, language="de")


def test_samples_are_the_references_from_the_same_seed() -> None:
    options: dict[str, Any] = {"temperature": 0.8, "best_of": 3, "language": "en"}
    torch.manual_seed(3)
    got = decode(our_model("tiny.en"), encoded("tiny.en", CUTTER), **options)[0]
    torch.manual_seed(3)
    with torch.inference_mode():
        expected = whisper.decode(
            reference_model("tiny.en"),
            features_of("tiny.en", CUTTER),
            whisper.DecodingOptions(fp16=False, **options),
        )[0]
    assert got.tokens == expected.tokens


def test_language_probabilities_are_the_references() -> None:
    clips = [GERMAN, CHINESE, CUTTER]
    batch = torch.cat([encoded("base", clip).features for clip in clips])
    tokens, probs = detect_language(our_model("base"), batch)
    for row, clip in enumerate(clips):
        _, expected = whisper.detect_language(reference_model("base"), features_of("base", clip))
        assert probs[row] == pytest.approx(expected[0], abs=1e-5)
    assert [max(row, key=row.get) for row in probs] == ["de", "zh", "en"]
    assert tokens.tolist() == [50261, 50260, 50259]

    single_token, single_probs = detect_language(our_model("base"), batch[0])
    assert int(single_token) == 50261
    assert single_probs == pytest.approx(probs[0], abs=1e-5)


def test_lang_id_tells_the_language_alone() -> None:
    result = decode(our_model("base"), encoded("base", GERMAN), task="lang_id")[0]
    assert result.language == "de"
    assert result.language_probs is not None and result.language_probs["de"] > 0.9
    assert (result.text, result.tokens) == ("", [])


@pytest.mark.parametrize("options", [{}, {"beam_size": 2}], ids=str)
def test_rows_of_a_batch_are_decoded_as_if_alone(options: dict[str, Any]) -> None:
    """Languages differ between the rows, and so does where they end."""
    clips = [GERMAN, CUTTER, CHINESE]
    batch = torch.cat([encoded("base", clip).features for clip in clips])
    together = decode(our_model("base"), batch, DecodingOptions(**options))
    assert isinstance(together, list)
    alone = [decode(our_model("base"), encoded("base", clip), **options)[0] for clip in clips]
    assert [one.tokens for one in together] == [one.tokens for one in alone]
    assert [one.language for one in together] == ["de", "en", "zh"]


def test_one_spectrogram_gives_one_result() -> None:
    result = decode(our_model("tiny.en"), mel_of(CUTTER), without_timestamps=True)
    assert not isinstance(result, list)
    assert (
        result.text
        == decode(our_model("tiny.en"), encoded("tiny.en", CUTTER), without_timestamps=True)[0].text
    )
    assert result.audio_features.shape == (1500, 384)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"task": "summarise"}, "task"),
        ({"language": "klingon"}, "klingon"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"sample_len": 0}, "sample_len"),
        ({"beam_size": 0}, "beam_size"),
        ({"beam_size": 2.5}, "beam_size"),
        ({"best_of": 5}, "best_of"),
        ({"beam_size": 5, "best_of": 5, "temperature": 0.2}, "best_of"),
        ({"patience": 2.0}, "patience"),
        ({"beam_size": 2, "patience": 0.1}, "patience"),
        ({"length_penalty": 1.5}, "length_penalty"),
        ({"suppress_tokens": "-1,x"}, "suppress_tokens"),
        ({"suppress_tokens": [-7]}, "suppress_tokens"),
        ({"prompt": [-1]}, "prompt"),
        ({"prefix": ["a"]}, "prefix"),
        ({"max_initial_timestamp": -1}, "max_initial_timestamp"),
    ],
    ids=str,
)
def test_nonsense_is_rejected_with_the_fields_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodingOptionsError, match=field):
        DecodingOptions(**options)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"task": "translate"}, "task"),
        ({"task": "lang_id"}, "task"),
        ({"language": "de"}, "language"),
        ({"suppress_tokens": [51864]}, "suppress_tokens"),
        ({"prompt": [60_000]}, "prompt"),
        ({"prefix": [7] * 448}, "prefix"),
    ],
    ids=str,
)
def test_what_this_model_cannot_do_is_rejected(options: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodingOptionsError, match=field):
        decode(our_model("tiny.en"), mel_of(CUTTER), **options)


def test_language_of_an_english_only_model_cannot_be_detected() -> None:
    with pytest.raises(DecodingOptionsError, match="language"):
        detect_language(our_model("tiny.en"), mel_of(CUTTER))


def test_options_are_values() -> None:
    options = DecodingOptions(language="German", suppress_tokens=[1, 2], prompt=[5])
    assert (options.language, options.suppress_tokens, options.prompt) == ("de", (1, 2), (5,))
    assert options == DecodingOptions(language="de", suppress_tokens="1,2", prompt=(5,))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.task = "translate"  # type: ignore[misc]
