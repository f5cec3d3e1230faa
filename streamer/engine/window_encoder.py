"""Audio windows to cross-attention caches: the encoder sees the audio there is, not 30 s of zeros.

Whisper was trained on 30 s windows, and with a short context small models run away. What keeps them
steady is silence to look at after the speech: a second of it is encoded with the window, and states
from the end of an encoded silence, the same for every window, are appended for cross-attention.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ...model.media.audio import N_SAMPLES, N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from ...model.whisper.cache import CrossCache
from ...model.whisper.mel import log_mel_spectrogram
from ...model.whisper.network import Whisper
from .backend import ContextMode

__all__ = ["WindowEncoder", "padded_samples", "silence_states"]

_PAD_SAMPLES = SAMPLE_RATE  # silence encoded after the audio
_SILENCE_STATES = 400  # encoder states of silence appended, 8 s
_BUCKET_SAMPLES = (
    SAMPLE_RATE  # lengths are rounded up to this: oneDNN keeps code for every shape it meets
)


class WindowEncoder:
    """Encodes one window at a time. Several threads may use it at once."""

    def __init__(self, model: Whisper) -> None:
        self._model = model
        self._silence = silence_states(model)

    def __call__(self, audio: NDArray[np.float32], context: ContextMode) -> tuple[CrossCache, int]:
        """Encode ``audio`` [samples] at 16 kHz, at most 30 s.

        Returns:
            Its cache (one row), and the number of the cache's positions that hold the audio itself.
        """
        frames = -(-len(audio) // N_SAMPLES_PER_TOKEN)  # encoder positions of 20 ms, rounded up
        padded = padded_samples(len(audio), context)
        features = self._encode(np.pad(audio, (0, padded - len(audio))))
        cache = self._model.decoder.audio_cache(features)
        if padded < N_SAMPLES:
            cache = self._with_silence(cache)
        return cache, min(frames, features.shape[1])

    def _encode(self, samples: NDArray[np.float32]) -> torch.Tensor:
        """[samples] -> features [1, samples / 320, D]"""
        return _encode(self._model, samples)

    def _with_silence(self, cache: CrossCache) -> CrossCache:
        return CrossCache(
            [torch.cat(pair, dim=2) for pair in zip(cache.k, self._silence.k, strict=True)],
            [torch.cat(pair, dim=2) for pair in zip(cache.v, self._silence.v, strict=True)],
        )


def padded_samples(samples: int, context: ContextMode) -> int:
    """Return the number of samples that are encoded of a window of ``samples``: with silence, in one of few lengths."""
    padded = samples + _PAD_SAMPLES
    padded += -padded % _BUCKET_SAMPLES
    if context == "full" or padded + _SILENCE_STATES * N_SAMPLES_PER_TOKEN >= N_SAMPLES:
        return N_SAMPLES  # nothing to be saved
    return padded


def silence_states(model: Whisper) -> CrossCache:
    """Return the cache that follows every window that is not full: the end of an encoded silence."""
    silence = _encode(model, np.zeros(N_SAMPLES, dtype=np.float32))
    return model.decoder.audio_cache(silence[:, -_SILENCE_STATES:])


def _encode(model: Whisper, samples: NDArray[np.float32]) -> torch.Tensor:
    """[samples] -> features [1, samples / 320, D]"""
    mel = log_mel_spectrogram(samples, model.dims.n_mels, device=model.device)
    return model.embed_audio(mel[None].to(model.dtype))
