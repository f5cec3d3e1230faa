"""Log-mel spectrograms equal the reference's, alone and in batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import whisper.audio
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.whisper.mel import log_mel_spectrogram, mel_filter_bank

JFK = Path(__file__).parents[2] / "data" / "en-speech-jfk.wav"


@pytest.fixture(scope="module")
def speech() -> NDArray[np.float32]:
    return load_audio(JFK)


@pytest.mark.parametrize("n_mels", [80, 128])
def test_filter_bank_equals_the_published_table(n_mels: int) -> None:
    table = Path(whisper.audio.__file__).parent / "assets" / "mel_filters.npz"
    with np.load(table) as published:
        np.testing.assert_allclose(
            mel_filter_bank(n_mels), published[f"mel_{n_mels}"], rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("n_mels", [80, 128])
@pytest.mark.parametrize("padding", [0, 480_000])
def test_equals_the_reference(speech: NDArray[np.float32], n_mels: int, padding: int) -> None:
    ours = log_mel_spectrogram(speech, n_mels, padding)
    reference = whisper.audio.log_mel_spectrogram(speech, n_mels, padding)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, reference, rtol=0, atol=1e-5)


def test_a_batch_equals_its_rows_alone(speech: NDArray[np.float32]) -> None:
    rows = np.stack([speech[:48_000], speech[48_000:96_000] * 0.01, np.zeros(48_000, np.float32)])
    batch = log_mel_spectrogram(rows)
    assert batch.shape == (3, 80, 300)
    for row, samples in zip(batch, rows, strict=True):
        torch.testing.assert_close(row, log_mel_spectrogram(samples), rtol=0, atol=1e-5)


def test_kinds_of_input(speech: NDArray[np.float32]) -> None:
    expected = log_mel_spectrogram(speech)
    read_only = np.frombuffer(speech.tobytes(), np.float32)
    assert torch.equal(log_mel_spectrogram(read_only), expected)
    assert torch.equal(log_mel_spectrogram(torch.from_numpy(speech), device="cpu"), expected)
    backwards = np.ascontiguousarray(speech[::-1])[::-1]
    assert torch.equal(log_mel_spectrogram(backwards), expected)


def test_one_frame_every_160_samples() -> None:
    for samples in (201, 1_600, 1_759, 1_760):
        assert log_mel_spectrogram(np.zeros(samples, np.float32)).shape == (80, samples // 160)


def test_silence_and_nothing_at_all() -> None:
    assert log_mel_spectrogram(np.zeros(0, np.float32), padding=480_000).shape == (80, 3_000)
    with pytest.raises(ValueError, match="200 samples is too short"):
        log_mel_spectrogram(np.zeros(200, np.float32))
