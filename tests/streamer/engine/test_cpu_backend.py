"""Decode jobs on real models. In float32: the words of lighter types depend on the processor."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.streamer.engine.cpu_backend import BackendConfig, CoreShare, CpuBackend
from whisper_stream.streamer.jobs import DecodeJob
from whisper_stream.streamer.session.guards import is_no_speech

pytestmark = pytest.mark.timeout(120)  # on a fresh machine the first test compiles the kernels

DATA = Path(__file__).parents[2] / "data"


@cache
def backend(name: str) -> CpuBackend:
    return CpuBackend(load_model(name, device="cpu", compute_type="float32"))


def clip(name: str) -> NDArray[np.float32]:
    return load_audio(DATA / name)


@pytest.mark.parametrize(
    ("name", "language", "words"),
    [
        ("de-read-portal.flac", "de", ("hinter diesem", "Raum wurde als")),
        ("zh-read-jiaoyi.flac", "zh", ("出", "的")),
        ("en-read-7902-cutter.flac", "en", ("cutter", "coast")),
    ],
)
def test_the_language_is_detected(name: str, language: str, words: tuple[str, ...]) -> None:
    result = backend("base").decode([DecodeJob(audio=clip(name), endpoint=True)])[0]
    assert result.language == language
    assert result.language_probability is not None and result.language_probability > 0.5
    text = "".join(word.text for word in result.words)
    assert all(word in text for word in words)


def test_a_given_language_is_not_detected() -> None:
    job = DecodeJob(audio=clip("de-read-portal.flac"), language="de")
    assert backend("base").decode([job])[0].language_probability is None


def test_translation_is_english() -> None:
    job = DecodeJob(
        audio=clip("de-read-portal.flac"), language="de", task="translate", endpoint=True
    )
    text = "".join(word.text for word in backend("base").decode([job])[0].words)
    assert "portal" in text.lower() and "hinter" not in text


def test_words_are_timed_inside_the_audio_and_in_order() -> None:
    audio = clip("en-speech-jfk.wav")
    words = backend("tiny.en").decode([DecodeJob(audio=audio, endpoint=True)])[0].words
    assert "".join(word.text for word in words).lower().startswith(" and so my fellow americans")
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0.0 <= times[0] and times[-1] <= len(audio) / 16_000
    assert all(0.0 < word.probability <= 1.0 for word in words)


def test_the_prefix_is_not_said_again() -> None:
    audio = clip("en-read-7902-cutter.flac")
    whole = backend("tiny.en").decode([DecodeJob(audio=audio, endpoint=True)])[0]
    prefix = tuple(token for word in whole.words[:4] for token in word.tokens)
    rest = backend("tiny.en").decode([DecodeJob(audio=audio, prefix=prefix, endpoint=True)])[0]
    assert [word.text for word in rest.words] == [word.text for word in whole.words[4:]]
    expected = np.array([word.start for word in whole.words[4:]])
    assert np.abs(np.array([word.start for word in rest.words]) - expected).max() <= 0.1


@pytest.mark.parametrize("context", ["trimmed", "full"])
def test_context_modes_say_the_same(context: str) -> None:
    config = BackendConfig(update_context="trimmed" if context == "trimmed" else "full")
    audio = clip("en-read-1272-quilter.flac")
    words = CpuBackend(backend("tiny.en").model, config).decode([DecodeJob(audio=audio)])[0]
    text = "".join(word.text for word in words.words).lower()
    assert "quilter is the apostle of the middle classes" in text


def test_noise_is_not_turned_into_nonsense_by_the_ladder() -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.02, 32_000).astype(np.float32)
    result = backend("tiny.en").decode([DecodeJob(audio=noise, endpoint=True)])[0]
    assert result.temperature == 0.0
    assert is_no_speech(result)


def test_cores_are_divided_among_the_backends_that_decode() -> None:
    before = torch.get_num_threads()
    cores = CoreShare(8)
    try:
        with cores:
            assert torch.get_num_threads() == 8
            with cores, cores:
                assert torch.get_num_threads() == 2
        with cores:
            assert torch.get_num_threads() == 8
    finally:
        torch.set_num_threads(before)
