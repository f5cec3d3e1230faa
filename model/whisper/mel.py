"""Log-mel spectrograms: what Whisper's encoder hears (Radford et al. 2022, section 2.2)."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..media.audio import HOP_LENGTH, N_FFT, SAMPLE_RATE

__all__ = ["log_mel_spectrogram", "mel_filter_bank"]

_DYNAMIC_RANGE = 8.0  # decades kept below the loudest bin
_FLOOR = 1e-10  # of power, before the logarithm

# Slaney's mel scale (Auditory Toolbox, 1998): linear up to 1 kHz, then 27 mels for a factor of 6.4.
_LINEAR_HZ_PER_MEL = 200.0 / 3.0
_LOG_START_HZ = 1000.0
_LOG_START_MEL = _LOG_START_HZ / _LINEAR_HZ_PER_MEL
_LOG_STEP = np.log(6.4) / 27.0


def log_mel_spectrogram(
    audio: NDArray[np.float32] | torch.Tensor,
    n_mels: int = 80,
    padding: int = 0,
    device: str | torch.device | None = None,
) -> torch.Tensor:
    """Compute the log-mel spectrogram of 16 kHz audio.

    Args:
        audio: ``[samples]`` or ``[batch, samples]`` in -1..1. Each row is scaled by its own loudest
            bin, as if it were computed alone.
        n_mels: mel bins; 80, or 128 from large-v3 on.
        padding: zero samples appended before the transform.
        device: where to compute; where the audio is when None.

    Returns:
        ``[..., n_mels, frames]`` float32, one frame for every 160 samples (10 ms).

    Raises:
        ValueError: when the audio with its padding is shorter than 201 samples.
    """
    samples = _as_tensor(audio)
    if device is not None:
        samples = samples.to(device)
    if padding > 0:
        samples = functional.pad(samples, (0, padding))
    if samples.shape[-1] <= N_FFT // 2:
        raise ValueError(
            f"audio of {samples.shape[-1]} samples is too short for a spectrogram: "
            f"pad it to more than {N_FFT // 2}"
        )
    window = _hann_window(samples.device)
    spectrum = torch.stft(samples, N_FFT, HOP_LENGTH, window=window, return_complex=True)
    power = spectrum[..., :-1].abs() ** 2  # [..., N_FFT // 2 + 1, frames]
    mel = _filters_on(n_mels, samples.device) @ power  # [..., n_mels, frames]
    log_mel = mel.clamp(min=_FLOOR).log10()
    loudest = log_mel.amax(dim=(-2, -1), keepdim=True)
    log_mel = torch.maximum(log_mel, loudest - _DYNAMIC_RANGE)
    return (log_mel + 4.0) / 4.0


def _as_tensor(audio: NDArray[np.float32] | torch.Tensor) -> torch.Tensor:
    if isinstance(audio, torch.Tensor):
        return audio
    if not audio.flags.writeable or any(stride < 0 for stride in audio.strides):
        audio = audio.copy()  # torch shares neither kind of memory
    return torch.from_numpy(audio)


def mel_filter_bank(n_mels: int) -> NDArray[np.float32]:
    """Return triangular filters ``[n_mels, 201]`` from FFT bins to mel bins, each of unit area.

    They are those of ``librosa.filters.mel`` with Slaney's scale and normalisation.
    """
    fft_hz = np.linspace(0.0, SAMPLE_RATE / 2, N_FFT // 2 + 1)
    edges_hz = _mel_to_hz(np.linspace(0.0, _hz_to_mel(SAMPLE_RATE / 2), n_mels + 2))
    below, centre, above = edges_hz[:-2, None], edges_hz[1:-1, None], edges_hz[2:, None]
    rising = (fft_hz - below) / (centre - below)
    falling = (above - fft_hz) / (above - centre)
    triangles = np.maximum(0.0, np.minimum(rising, falling)).astype(np.float32)
    unit_area = 2.0 / (above - below)
    return (triangles * unit_area).astype(np.float32)


def _hz_to_mel(hz: float) -> float:
    """Convert a frequency of at least 1 kHz, where the scale is logarithmic."""
    return float(_LOG_START_MEL + np.log(hz / _LOG_START_HZ) / _LOG_STEP)


def _mel_to_hz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mels * _LINEAR_HZ_PER_MEL
    logarithmic = _LOG_START_HZ * np.exp(_LOG_STEP * (mels - _LOG_START_MEL))
    return np.where(mels < _LOG_START_MEL, linear, logarithmic)


@cache
def _filters_on(n_mels: int, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(mel_filter_bank(n_mels)).to(device)


@cache
def _hann_window(device: torch.device) -> torch.Tensor:
    return torch.hann_window(N_FFT).to(device)
