"""Files and arrays as the model hears them: 16 kHz mono float32. Loads no torch by itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError
from .decode import INT16_SCALE, open_file
from .pcm import SAMPLE_RATE

if TYPE_CHECKING:
    import torch

__all__ = [
    "CHUNK_LENGTH",
    "FRAMES_PER_SECOND",
    "HOP_LENGTH",
    "N_FFT",
    "N_FRAMES",
    "N_SAMPLES",
    "N_SAMPLES_PER_TOKEN",
    "SAMPLE_RATE",
    "TOKENS_PER_SECOND",
    "iter_audio",
    "load_audio",
    "pad_or_trim",
    "to_waveform",
]

N_FFT = 400  # samples of one spectrogram window (25 ms)
HOP_LENGTH = 160  # samples between two mel frames (10 ms)
CHUNK_LENGTH = 30  # seconds the encoder takes at once
N_SAMPLES = CHUNK_LENGTH * SAMPLE_RATE  # 480,000
N_FRAMES = N_SAMPLES // HOP_LENGTH  # 3,000
N_SAMPLES_PER_TOKEN = HOP_LENGTH * 2  # the encoder halves the frame rate
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_LENGTH  # 100
TOKENS_PER_SECOND = SAMPLE_RATE // N_SAMPLES_PER_TOKEN  # 50

_MIN_RATE, _MAX_RATE = 8_000, 48_000
_MAX_CHANNELS = 8
_Array = TypeVar("_Array", bound="NDArray[Any] | torch.Tensor")


def load_audio(source: str | Path | IO[bytes], sr: int = SAMPLE_RATE) -> NDArray[np.float32]:
    """Read a whole audio file, of any container and codec that FFmpeg knows.

    Args:
        source: a path, or an open binary file.
        sr: sample rate of the result, per second.

    Returns:
        ``[samples]`` mono float32 in -1..1: the int16 values that FFmpeg of the same version gives
        for ``-f s16le -ac 1 -ar {sr}``, over 32768.

    Raises:
        AudioError: when the file is missing, unreadable, not audio, or holds no sound.

    Warns:
        UserWarning: parts of the file are damaged, or it ends before its header says so.
    """
    blocks = list(iter_audio(source, sr))
    return np.concatenate(blocks).astype(np.float32) * INT16_SCALE


def iter_audio(
    source: str | Path | IO[bytes], sr: int = SAMPLE_RATE
) -> Iterator[NDArray[np.int16]]:
    """Yield the audio of a file as it is decoded: mono blocks ``[samples]`` at ``sr``.

    Args:
        source: a path, or an open binary file.
        sr: sample rate of the blocks, per second.

    Raises:
        AudioError: as :func:`load_audio`; for a file without sound, after its end.

    Warns:
        UserWarning: as :func:`load_audio`.
    """
    with open_file(source) as track:
        yield from track.blocks(sr)
        found = track.damage.report()
    if found is not None:
        warnings.warn(f"{track.name} {found}", stacklevel=2)


def to_waveform(
    audio: NDArray[Any] | torch.Tensor, sample_rate: int = SAMPLE_RATE
) -> NDArray[np.float32]:
    """Turn samples in memory into what the model hears.

    Args:
        audio: ``[samples]``, ``[channels, samples]`` or ``[samples, channels]``; the longer axis is
            taken for the samples. Integers are scaled by their type's range; floats are in -1..1.
        sample_rate: of the samples, 8000 to 48000 per second.

    Returns:
        ``[samples]`` float32 at 16 kHz, the mean of the channels.

    Raises:
        AudioError: when the rate, the shape, the type or a value is unusable.
    """
    if not _MIN_RATE <= sample_rate <= _MAX_RATE:
        raise AudioError(
            f"sample_rate must be {_MIN_RATE} to {_MAX_RATE}, not {sample_rate}: resample first."
        )
    mono = _mix_down(_scale(_as_numpy(audio)))
    if not np.isfinite(mono).all():
        raise AudioError("audio has samples that are NaN or infinite: clean the array first.")
    if sample_rate != SAMPLE_RATE and mono.size:
        import soxr  # only here: files are resampled by FFmpeg

        mono = soxr.resample(mono, sample_rate, SAMPLE_RATE)
    return np.ascontiguousarray(mono, dtype=np.float32)


def _as_numpy(audio: NDArray[Any] | torch.Tensor) -> NDArray[Any]:
    if isinstance(audio, np.ndarray):
        return audio
    tensor = audio.detach().cpu()
    # numpy has no bfloat16
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _scale(audio: NDArray[Any]) -> NDArray[np.float32]:
    if audio.dtype.kind == "f":
        return audio.astype(np.float32, copy=False)
    if audio.dtype == np.uint8:  # the one unsigned PCM: silence is 128
        return (audio.astype(np.float32) - 128.0) / 128.0
    if audio.dtype in (np.int16, np.int32):
        return (audio / -float(np.iinfo(audio.dtype).min)).astype(np.float32)
    raise AudioError(
        f"audio of type {audio.dtype} is not samples: give int16, int32, uint8 or a float type."
    )


def _mix_down(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    if audio.ndim == 1:
        return audio
    channels_axis = 0 if audio.ndim == 2 and audio.shape[0] <= audio.shape[1] else 1
    if audio.ndim != 2 or not 1 <= audio.shape[channels_axis] <= _MAX_CHANNELS:
        raise AudioError(
            f"audio of shape {audio.shape} is not one recording: give [samples], "
            "[channels, samples] or [samples, channels]."
        )
    mono: NDArray[np.float32] = audio.mean(axis=channels_axis, dtype=np.float32)
    return mono


def pad_or_trim(array: _Array, length: int = N_SAMPLES, *, axis: int = -1) -> _Array:
    """Cut an array or tensor to ``length`` along ``axis``, or fill it up with zeros at the end."""
    have = array.shape[axis]
    if have > length:
        index = [slice(None)] * array.ndim
        index[axis] = slice(length)
        return array[tuple(index)]  # type: ignore[return-value]
    if have == length:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - have)
    if isinstance(array, np.ndarray):
        return np.pad(array, widths)  # type: ignore[return-value]
    pad = sys.modules["torch"].nn.functional.pad  # a tensor is at hand, so torch is loaded
    return pad(array, [size for pair in reversed(widths) for size in pair])  # type: ignore[no-any-return]
