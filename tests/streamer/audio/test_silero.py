"""The Silero detector on real speech and real noise, and without its package."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from whisper_stream.streamer.audio import silero
from whisper_stream.streamer.audio.detectors import make_detector
from whisper_stream.streamer.audio.silero import SileroDetector
from whisper_stream.streamer.audio.vad import FRAME_SAMPLES, SpeechDetector, WebRtcDetector
from whisper_stream.streamer.errors import DetectorError


def share_of_speech(detector: SpeechDetector, audio: NDArray[np.float32]) -> float:
    frames = audio[: len(audio) // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return float(np.mean([detector.is_speech(frame) for frame in frames]))


def test_it_hears_speech_and_not_noise(jfk: NDArray[np.float32]) -> None:
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(jfk)).astype(np.float32)
    assert share_of_speech(SileroDetector(), jfk) > 0.5
    assert share_of_speech(SileroDetector(), noise) == 0.0


def test_streams_that_share_the_network_do_not_hear_each_other(jfk: NDArray[np.float32]) -> None:
    audio = jfk[: 3 * 16_000]
    noise = np.random.default_rng(0).normal(0.0, 0.05, len(audio)).astype(np.float32)
    alone = SileroDetector()
    expected = [
        alone.is_speech(audio[at : at + FRAME_SAMPLES])
        for at in range(0, len(audio), FRAME_SAMPLES)
    ]
    one, other = SileroDetector(), SileroDetector()
    heard = []
    for at in range(0, len(audio), FRAME_SAMPLES):
        heard.append(one.is_speech(audio[at : at + FRAME_SAMPLES]))
        other.is_speech(noise[at : at + FRAME_SAMPLES])
    assert heard == expected
    assert True in heard


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    silero._network.cache_clear()
    monkeypatch.setattr(silero, "find_spec", lambda name: None)
    with pytest.raises(DetectorError, match=r"pip install 'whisper-stream\[silero\]'"):
        make_detector("silero")
    monkeypatch.undo()
    silero._network.cache_clear()


def test_detectors_go_by_name() -> None:
    assert isinstance(make_detector("webrtc"), WebRtcDetector)
    assert isinstance(make_detector("silero"), SileroDetector)
