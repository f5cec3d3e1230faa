"""From a client's bytes to 16 kHz mono float32, however they were cut."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import soxr
from numpy.typing import NDArray

from ...model.media.pcm import SAMPLE_TYPES, FrameCutter
from ...model.media.samples import SampleCheck
from ..config import SAMPLE_RATE
from ..errors import IngestError
from ..events import StreamWarning

__all__ = [
    "ENCODINGS",
    "MAX_SAMPLE_RATE",
    "MIN_SAMPLE_RATE",
    "Ingest",
    "PcmIngest",
    "open_ingest",
]

ENCODINGS: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in SAMPLE_TYPES.items()}
MIN_SAMPLE_RATE = 8_000
MAX_SAMPLE_RATE = 48_000


class Ingest(Protocol):
    """Bytes in, 16 kHz mono out. What comes out depends on the calls alone, not on timing."""

    @property
    def samples_in(self) -> int: ...
    @property
    def samples_out(self) -> int: ...
    @property
    def has_more(self) -> bool:
        """Whether ``more`` has something to give."""

    @property
    def error(self) -> str | None:
        """Why nothing can be made of the bytes any more, in one sentence."""

    def take_warning(self) -> StreamWarning | None:
        """What is wrong with the bytes so far; each thing once. They are made the best of all the same."""

    def push(self, data: bytes) -> NDArray[np.float32]: ...
    def more(self) -> NDArray[np.float32]: ...
    def finish(self) -> NDArray[np.float32]: ...
    def close(self) -> None: ...


def open_ingest(encoding: str, sample_rate: int, channels: int) -> Ingest:
    """The ingest of one stream: of PCM, or of a container that says itself what is in it.

    Raises IngestError for an unknown encoding, or a rate or channels that PCM cannot have here.
    """
    if encoding in ENCODINGS:
        return PcmIngest(encoding, sample_rate, channels)
    from .container import CONTAINERS, ContainerIngest  # loads FFmpeg: only where it is needed

    if encoding not in CONTAINERS:
        known = ", ".join((*ENCODINGS, *CONTAINERS))
        raise IngestError(f"encoding {encoding!r} is not supported: use one of {known}")
    return ContainerIngest(encoding)


def _ulaw() -> NDArray[np.float32]:
    """Samples of the 256 codes of G.711 mu-law, in -1..1."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4) & 7, (code & 15).astype(np.int32)
    size = (((mantissa << 3) + 132) << exponent) - 132
    return (np.where(code & 128, -size, size) / 32768).astype(np.float32)


def _alaw() -> NDArray[np.float32]:
    """Samples of the 256 codes of G.711 A-law, in -1..1."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = (mantissa << 4) + np.where(exponent > 0, 264, 8)
    size = size << np.maximum(exponent - 1, 0)
    return (np.where(code & 128, size, -size) / 32768).astype(np.float32)


_COMPANDED = {"mulaw": _ulaw(), "alaw": _alaw()}


class PcmIngest:
    """Decodes PCM of any chunking: bytes of an unfinished sample and the resampler's phase are carried over.

    Raises IngestError for a format outside ``ENCODINGS``, 8 to 48 kHz, one or two channels.
    """

    def __init__(self, encoding: str, sample_rate: int, channels: int) -> None:
        if encoding not in ENCODINGS:
            raise IngestError(
                f"encoding {encoding!r} is not supported: use one of {', '.join(ENCODINGS)}"
            )
        if not MIN_SAMPLE_RATE <= sample_rate <= MAX_SAMPLE_RATE:
            raise IngestError(
                f"sample_rate {sample_rate} is not supported: use {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} Hz"
            )
        if channels not in (1, 2):
            raise IngestError(f"channels {channels} is not supported: use 1 or 2")
        self._dtype = ENCODINGS[encoding]
        self._companded = _COMPANDED.get(encoding)
        self._channels = channels
        self._frames = FrameCutter(self._dtype.itemsize * channels)
        self._resampler = (
            soxr.ResampleStream(sample_rate, SAMPLE_RATE, 1, dtype="float32", quality="HQ")
            if sample_rate != SAMPLE_RATE
            else None
        )
        self._samples_in = 0
        self._samples_out = 0
        self._check = SampleCheck(encoding)
        self._doubt: str | None = None

    @property
    def samples_in(self) -> int:
        """Whole samples received, per channel, at the client's rate."""
        return self._samples_in

    @property
    def samples_out(self) -> int:
        """Samples given out, at 16 kHz."""
        return self._samples_out

    @property
    def has_more(self) -> bool:
        return False

    @property
    def error(self) -> str | None:
        return None

    def take_warning(self) -> StreamWarning | None:
        doubt, self._doubt = self._doubt, None
        return None if doubt is None else StreamWarning(code="encoding", message=doubt)

    def more(self) -> NDArray[np.float32]:
        return np.zeros(0, dtype=np.float32)

    def close(self) -> None:
        """Nothing to end."""

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Take any number of bytes and return the samples that they complete: [S] at 16 kHz, in -1..1."""
        raw = np.frombuffer(self._frames.push(data), dtype=self._dtype)
        if not len(raw):
            return np.zeros(0, dtype=np.float32)
        self._doubt = self._check.look(raw) or self._doubt
        samples = raw.astype(np.float32)
        if self._companded is not None:
            samples = self._companded[raw]
        elif self._dtype.kind == "i":
            samples *= 1.0 / 32768.0
        else:
            # not-a-number or an absurd level would poison the whole window
            samples = np.clip(np.nan_to_num(samples, nan=0.0, posinf=1.0, neginf=-1.0), -1.0, 1.0)
        if self._channels == 2:
            samples = samples.reshape(-1, 2).mean(axis=1)  # [n, 2] -> [n]
        self._samples_in += len(samples)
        return self._resample(samples, last=False)

    def finish(self) -> NDArray[np.float32]:
        """What the resampler still holds. Call once, after the last ``push``."""
        return self._resample(np.zeros(0, dtype=np.float32), last=True)

    def _resample(self, samples: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        self._samples_out += len(samples)
        return samples
