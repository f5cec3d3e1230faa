"""``transcribe`` against the reference, with real weights and recordings."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import whisper
from numpy.typing import NDArray
from whisper_stream.model import transcribe
from whisper_stream.model.errors import AudioError, DecodingOptionsError
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.transcription.progress import segment_line
from whisper_stream.model.transcription.segments import Segment

from ...helpers.reference import our_model, reference_model

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

DATA = Path(__file__).parents[2] / "data"


@cache
def clip(name: str) -> NDArray[np.float32]:
    return load_audio(DATA / name)


@cache
def long_audio() -> NDArray[np.float32]:
    """45 seconds: two windows, a pause, a dog."""
    parts = [
        clip("en-speech-jfk.wav"),
        clip("en-read-1272-quilter.flac"),
        np.zeros(16_000 * 6, np.float32),
        clip("en-read-7902-cutter.flac"),
        clip("noise-dog.flac"),
        clip("en-read-1272-quilter.flac"),
        clip("en-speech-jfk.wav"),
    ]
    return np.concatenate(parts)


def assert_same_as_reference(name: str, audio: NDArray[np.float32], **options: Any) -> None:
    options = {"temperature": 0.0, **options}
    torch.manual_seed(5)
    got = transcribe(our_model(name), audio, **options)
    torch.manual_seed(5)
    expected = whisper.transcribe(reference_model(name), audio, fp16=False, **options)
    assert (got["text"], got["language"]) == (expected["text"], expected["language"])
    assert len(got["segments"]) == len(expected["segments"])
    for one, same in zip(got["segments"], expected["segments"], strict=True):
        assert list(one) == list(same)
        for key in ("id", "seek", "text", "tokens", "temperature", "compression_ratio"):
            assert one[key] == same[key]
        for key in ("start", "end"):
            assert one[key] == pytest.approx(same[key], abs=0.02 if "words" in one else 0)
        for key in ("avg_logprob", "no_speech_prob"):
            assert one[key] == pytest.approx(same[key], abs=1e-3)
        assert_same_words(one.get("words", []), same.get("words", []))


def assert_same_words(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert [list(word) for word in got] == [list(word) for word in expected]
    assert [word["word"] for word in got] == [word["word"] for word in expected]
    for word, same in zip(got, expected, strict=True):
        assert word["start"] == pytest.approx(same["start"], abs=0.0201)
        assert word["end"] == pytest.approx(same["end"], abs=0.0201)
        assert word["probability"] == pytest.approx(same["probability"], abs=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"word_timestamps": True, "hallucination_silence_threshold": 2.0},
        {"condition_on_previous_text": False, "initial_prompt": "Mr. Quilter", "beam_size": 2},
        {"clip_timestamps": "3,9,20.5", "without_timestamps": True},
        # every window climbs the ladder
        {"temperature": (0.0, 0.4, 0.9), "logprob_threshold": -0.1, "clip_timestamps": "0,17"},
    ],
    ids=str,
)
def test_a_long_recording_is_transcribed_as_by_the_reference(options: dict[str, Any]) -> None:
    assert_same_as_reference("tiny.en", long_audio(), **options)


def test_language_is_detected_and_words_are_timed_as_by_the_reference() -> None:
    assert_same_as_reference("base", clip("de-read-portal.flac"), word_timestamps=True)


def test_silence_says_nothing() -> None:
    assert_same_as_reference("tiny.en", np.zeros(16_000 * 3, np.float32))
    assert transcribe(our_model("tiny.en"), np.zeros(0, np.float32))["segments"] == []


def test_a_file_and_its_samples_give_the_same() -> None:
    path = DATA / "en-read-7902-cutter.flac"
    model = our_model("tiny.en")
    assert transcribe(model, str(path), temperature=0.0) == transcribe(
        model, torch.from_numpy(clip(path.name)), temperature=0.0
    )


def test_batched_windows_say_all_that_is_said_once() -> None:
    """The cuts fall into silences, so no word is lost or doubled."""
    pause = np.zeros(16_000 * 2, np.float32)
    names = ["en-speech-jfk.wav", "en-read-1272-quilter.flac", "en-read-7902-cutter.flac"] * 2
    audio = np.concatenate([part for name in names for part in (clip(name), pause)])
    result = transcribe(
        our_model("tiny.en"), audio, temperature=0.0, batch_size=3, word_timestamps=True
    )
    said = (
        "And so, my fellow Americans, ask not what your country can do for you, ask what you can "
        "do for your country. Mr. Quilter is the apostle of the middle classes, and we are glad to "
        "welcome his gospel. I'm from the cutter lying off the coast. "
    )
    assert letters(result["text"]) == letters(said * 2)
    words = [word for segment in result["segments"] for word in segment["words"]]
    starts = [word["start"] for word in words]
    assert starts == sorted(starts)
    assert words[-1]["end"] <= len(audio) / 16_000


def letters(text: str) -> list[str]:
    return ["".join(filter(str.isalpha, word)) for word in text.lower().split()]


def test_segments_and_language_are_reported_as_they_are_found() -> None:
    segments: list[Segment] = []
    languages: list[str] = []
    result = transcribe(
        our_model("base"),
        clip("de-read-portal.flac"),
        verbose=True,
        on_segment=segments.append,
        on_language=languages.append,
    )
    assert languages == ["de"]
    assert [segment.as_dict() for segment in segments] == result["segments"]


def test_verbose_writes_a_line_a_segment(capsys: pytest.CaptureFixture[str]) -> None:
    result = transcribe(our_model("tiny.en"), clip("en-read-7902-cutter.flac"), verbose=True)
    segment = result["segments"][0]
    line = capsys.readouterr().out.splitlines()[0]
    assert line == f"[00:00.000 --> 00:{segment['end']:06.3f}] {segment['text']}"


def test_lines_of_segments_have_hours_when_needed() -> None:
    segment = Segment(
        seek=0,
        start=3599.5,
        end=3661.25,
        text=" an hour",
        tokens=[],
        temperature=0.0,
        avg_logprob=0.0,
        compression_ratio=0.0,
        no_speech_prob=0.0,
    )
    assert segment_line(segment) == "[59:59.500 --> 01:01:01.250]  an hour"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": ()}, "temperature"),
        ({"temperature": (0.0, -1.0)}, "temperature"),
        ({"clip_timestamps": "1,x"}, "clip_timestamps"),
        ({"clip_timestamps": [-1.0]}, "clip_timestamps"),
        ({"clip_timestamps": "5,2"}, "ends .2. before it starts .5."),
        ({"batch_size": 0}, "batch_size"),
        ({"hallucination_silence_threshold": -1.0}, "hallucination_silence_threshold"),
        ({"hallucination_silence_threshold": 1.0, "batch_size": 2}, "batch_size"),
        ({"prompt": "x"}, "initial_prompt"),
        ({"task": "lang_id"}, "lang_id"),
        ({"language": "de"}, "language"),
        ({"bean_size": 5}, "bean_size"),
    ],
    ids=str,
)
def test_nonsense_is_rejected_with_the_options_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(DecodingOptionsError, match=field):
        transcribe(our_model("tiny.en"), clip("en-read-7902-cutter.flac"), **options)


def test_times_of_a_translation_come_with_a_warning() -> None:
    model = our_model("base")
    with pytest.warns(UserWarning, match="translation"):
        transcribe(
            model, np.zeros(16_000, np.float32), task="translate", language="de",
            word_timestamps=True,
        )  # fmt: skip


def test_a_missing_file_is_an_audio_error() -> None:
    with pytest.raises(AudioError, match="nowhere"):
        transcribe(our_model("tiny.en"), "nowhere.wav")
