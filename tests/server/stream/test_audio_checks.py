"""Suspicious audio is told once, and good audio never."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from whisper_stream.server.protocol.errors import WarningCode
from whisper_stream.server.stream.audio_checks import AudioMonitor
from whisper_stream.streamer.audio.ingest import PcmIngest

Samples = NDArray[np.float32]


def codes(audio: Samples, step: int = 1_600) -> list[WarningCode]:
    monitor = AudioMonitor()
    return [
        found.code
        for at in range(0, len(audio), step)
        for found in monitor.listen(audio[at : at + step])
    ]


def slowed(audio: Samples, times: int) -> Samples:
    """What a recording of ``times`` the rate sounds like when it is said to be at 16 kHz."""
    spectrum = np.fft.rfft(audio)
    padded = np.concatenate((spectrum, np.zeros(len(spectrum) * (times - 1), spectrum.dtype)))
    return (np.fft.irfft(padded) * times).astype(np.float32)


def test_speech_raises_no_suspicion(jfk: Samples) -> None:
    for level in (0.05, 0.5, 1.0):
        assert codes(np.tile(jfk, 3) * np.float32(level)) == []
    telephone = PcmIngest("f32le", 8_000, 1)
    assert codes(telephone.push(jfk[::2].astype("<f4").tobytes())) == []


@pytest.mark.parametrize("step", [160, 1_000, 100_000])
def test_each_fault_is_told_once(jfk: Samples, step: int) -> None:
    noise = np.random.default_rng(0).uniform(-1, 1, 160_000).astype(np.float32)
    faults = {
        WarningCode.NEARLY_SILENT: noise * np.float32(0.001),
        WarningCode.DC_OFFSET: jfk * np.float32(0.5) + np.float32(0.2),
        WarningCode.NOISE: noise,
        WarningCode.CLIPPING: np.clip(jfk * 20, -1, 1),
        WarningCode.SAMPLE_RATE: slowed(jfk, 3),
    }
    for code, audio in faults.items():
        assert codes(np.tile(audio, 2), step) == [code]


def test_floats_taken_for_whole_numbers_sound_like_noise(jfk: Samples) -> None:
    as_bytes = jfk.astype("<f4").tobytes()
    assert WarningCode.NOISE in codes(PcmIngest("s16le", 16_000, 1).push(as_bytes))


def test_silence_of_a_pause_is_no_fault(jfk: Samples) -> None:
    pause = np.zeros(8 * 16_000, np.float32)
    assert codes(np.concatenate([jfk, pause, jfk, pause])) == []
