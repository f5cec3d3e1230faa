"""Audio in: any file, container or array becomes 16 kHz mono float32. Loads no torch by itself."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import av
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer
from numpy.typing import NDArray

from ..errors import AudioError
from .damage import Damage
from .headers import FileBytes

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

SAMPLE_RATE = 16_000  # of everything the model hears, per second
N_FFT = 400  # samples of one spectrogram window (25 ms)
HOP_LENGTH = 160  # samples between two mel frames (10 ms)
CHUNK_LENGTH = 30  # seconds the encoder takes at once
N_SAMPLES = CHUNK_LENGTH * SAMPLE_RATE  # 480,000
N_FRAMES = N_SAMPLES // HOP_LENGTH  # 3,000
N_SAMPLES_PER_TOKEN = HOP_LENGTH * 2  # the encoder halves the frame rate
FRAMES_PER_SECOND = SAMPLE_RATE // HOP_LENGTH  # 100
TOKENS_PER_SECOND = SAMPLE_RATE // N_SAMPLES_PER_TOKEN  # 50

_INT16_SCALE = np.float32(1 / 32768)
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
    return np.concatenate(blocks).astype(np.float32) * _INT16_SCALE


def iter_audio(
    source: str | Path | IO[bytes], sr: int = SAMPLE_RATE
) -> Iterator[NDArray[np.int16]]:
    """Yield the audio of a file as it is decoded: mono blocks ``[samples]`` at ``sr``.

    Raises:
        AudioError: as :func:`load_audio`; for a file without sound, after its end.

    Warns:
        UserWarning: as :func:`load_audio`.
    """
    name = _name_of(source)
    _check_readable(source, name)
    samples = 0
    with _open(source, name) as container:
        if not container.streams.audio:
            raise AudioError(f"{name} has no audio track: give a file with sound in it.")
        if container.streams.audio[0].codec_context is None:
            raise AudioError(f"{name} is of a codec that is not known, or is damaged: convert it.")
        damage = Damage(container, FileBytes(source))
        frames = _decode(container, container.streams.audio[0], damage)
        for block in _resample(frames, sr, damage):
            samples += block.size
            yield block
        found = damage.report()
    if samples == 0:
        raise AudioError(
            f"{name} holds no sound (zero-length or damaged audio): record or export it again."
        )
    if found is not None:
        warnings.warn(f"{name} {found}", stacklevel=2)


def _name_of(source: str | Path | IO[bytes]) -> str:
    if isinstance(source, (str, Path)):
        return str(source)
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "the audio given"


def _check_readable(source: str | Path | IO[bytes], name: str) -> None:
    if not isinstance(source, (str, Path)):
        return
    path = Path(source)
    if not path.exists():
        raise AudioError(f"{name} does not exist: check the path.")
    if path.is_dir():
        raise AudioError(f"{name} is a folder: give an audio file inside it.")
    if not os.access(path, os.R_OK):
        raise AudioError(f"{name} cannot be read: check its permissions.")
    if path.is_file() and path.stat().st_size == 0:
        raise AudioError(f"{name} is an empty file: record or export it again.")


def _open(source: str | Path | IO[bytes], name: str) -> InputContainer:
    local = isinstance(source, (str, Path))
    try:
        return av.open(
            # The scheme keeps a path such as "rtp:x.wav" a path.
            f"file:{source}" if isinstance(source, (str, Path)) else source,
            mode="r",
            metadata_errors="replace",
            # A playlist must not make us fetch what it names from elsewhere.
            container_options={"protocol_whitelist": "file" if local else "none"},
        )
    except (av.FFmpegError, ValueError, OSError) as error:
        raise AudioError(
            f"{name} is not audio in any known format, or is damaged: "
            "give a WAV, FLAC, MP3, Ogg, M4A or WebM file."
        ) from error


def _decode(container: InputContainer, stream: AudioStream, damage: Damage) -> Iterator[AudioFrame]:
    """Yield decoded frames, going on past damaged packets as FFmpeg does."""
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets, None)
        except av.FFmpegError:  # the container breaks off here: what came before still counts
            damage.failed()
            packet = None
        if packet is None:
            break
        try:
            for frame in packet.decode():
                damage.frame(frame)
                yield frame
        except av.FFmpegError:
            damage.failed()
    with suppress(av.FFmpegError, EOFError):
        for frame in stream.codec_context.decode(None):
            damage.frame(frame)
            yield frame
    damage.end()


def _resample(frames: Iterator[AudioFrame], sr: int, damage: Damage) -> Iterator[NDArray[np.int16]]:
    """Convert frames to mono int16 blocks. A new format in mid-file starts a new resampler."""
    resampler: AudioResampler | None = None
    layout: tuple[str, str, int] | None = None
    for frame in frames:
        now = (frame.format.name, frame.layout.name, frame.sample_rate)
        if resampler is None or now != layout:
            yield from _drain(resampler)
            resampler = AudioResampler(format="s16", layout="mono", rate=sr)
            layout = now
        try:
            converted = resampler.resample(frame)
        except av.FFmpegError:  # no rate or layout that there is
            damage.failed()
            resampler = None
            continue
        for out in converted:
            yield out.to_ndarray()[0]
    yield from _drain(resampler)


def _drain(resampler: AudioResampler | None) -> Iterator[NDArray[np.int16]]:
    if resampler is not None:
        for out in resampler.resample(None):
            yield out.to_ndarray()[0]


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
