"""Conversion of a client's bytes, cut anywhere, to 16 kHz mono float32."""

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
    """Converter of one stream's bytes. Its samples depend on the calls alone, never on timing.

    ``push``, ``more`` and ``finish`` return samples [S] at 16 kHz in -1..1, of which there may be none.
    """

    @property
    def samples_in(self) -> int:
        """Samples received, per channel, at the client's rate; at 16 kHz where that is not known."""

    @property
    def samples_out(self) -> int:
        """Samples returned so far, at 16 kHz."""

    @property
    def has_more(self) -> bool:
        """True while ``more`` has samples that need no further bytes."""

    @property
    def error(self) -> str | None:
        """The reason why the bytes cannot be read from here on, in one sentence; None while they can."""

    def take_warning(self) -> StreamWarning | None:
        """Return a warning about bytes that look wrong and are converted all the same; each one once."""

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Take the next bytes, cut anywhere; return samples that they complete."""

    def more(self) -> NDArray[np.float32]:
        """Return further samples of the bytes pushed before."""

    def finish(self) -> NDArray[np.float32]:
        """Return samples held back until the end. Call once, after the last ``push``."""

    def close(self) -> None:
        """Give back threads and files. Samples that were not returned are dropped."""


def open_ingest(encoding: str, sample_rate: int, channels: int) -> Ingest:
    """Open the ingest of one stream.

    Args:
        encoding: one of PCM (``ENCODINGS``), or a container (``CONTAINERS``), which itself says its format.
        sample_rate: of PCM, in Hz.
        channels: of PCM, 1 or 2.

    Raises:
        IngestError: the encoding is unknown, or PCM is not supported with this rate or these channels.
    """
    if encoding in ENCODINGS:
        return PcmIngest(encoding, sample_rate, channels)
    from .container import CONTAINERS, ContainerIngest  # loads FFmpeg: only where it is needed

    if encoding not in CONTAINERS:
        known = ", ".join((*ENCODINGS, *CONTAINERS))
        raise IngestError(f"encoding {encoding!r} is not supported: use one of {known}")
    return ContainerIngest(encoding)


def _ulaw() -> NDArray[np.float32]:
    """Return the samples [256] of the codes of G.711 mu-law, in -1..1."""
    code = ~np.arange(256, dtype=np.uint8)
    exponent, mantissa = (code >> 4) & 7, (code & 15).astype(np.int32)
    size = (((mantissa << 3) + 132) << exponent) - 132
    return (np.where(code & 128, -size, size) / 32768).astype(np.float32)


def _alaw() -> NDArray[np.float32]:
    """Return the samples [256] of the codes of G.711 A-law, in -1..1."""
    code = np.arange(256, dtype=np.uint8) ^ 0x55
    exponent, mantissa = ((code >> 4) & 7).astype(np.int32), (code & 15).astype(np.int32)
    size = (mantissa << 4) + np.where(exponent > 0, 264, 8)
    size = size << np.maximum(exponent - 1, 0)
    return (np.where(code & 128, size, -size) / 32768).astype(np.float32)


_COMPANDED = {"mulaw": _ulaw(), "alaw": _alaw()}


class PcmIngest:
    """Converter of PCM: bytes of an unfinished sample and the resampler's phase are carried over.

    Args:
        encoding: one of ``ENCODINGS``.
        sample_rate: 8 to 48 kHz.
        channels: 1, or 2, which are averaged.

    Raises:
        IngestError: any other format.
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
        """Samples returned so far, at 16 kHz."""
        return self._samples_out

    @property
    def has_more(self) -> bool:
        """False: ``push`` returns all there is."""
        return False

    @property
    def error(self) -> str | None:
        """None: every byte is a sample."""
        return None

    def take_warning(self) -> StreamWarning | None:
        """Return a warning where the samples look like another encoding; once."""
        doubt, self._doubt = self._doubt, None
        return None if doubt is None else StreamWarning(code="encoding", message=doubt)

    def more(self) -> NDArray[np.float32]:
        """Return no samples: ``push`` returns all there is."""
        return np.zeros(0, dtype=np.float32)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""

    def push(self, data: bytes) -> NDArray[np.float32]:
        """Take the next bytes, cut anywhere; return the samples [S] that they complete."""
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
            samples = samples.reshape(-1, 2).mean(axis=1)  # [S, 2] -> [S]
        self._samples_in += len(samples)
        return self._resample(samples, last=False)

    def finish(self) -> NDArray[np.float32]:
        """Return the samples [S] that the resampler still holds. Call once, after the last ``push``."""
        return self._resample(np.zeros(0, dtype=np.float32), last=True)

    def _resample(self, samples: NDArray[np.float32], *, last: bool) -> NDArray[np.float32]:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        self._samples_out += len(samples)
        return samples
