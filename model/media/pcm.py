"""Raw samples as bytes: the encodings there are, how large a sample is, and cutting at whole samples."""

from __future__ import annotations

__all__ = ["SAMPLE_RATE", "SAMPLE_TYPES", "FrameCutter", "frame_bytes"]

SAMPLE_RATE = 16_000  # of everything the model hears, per second

# Encoding on the wire: numpy's name of the type that its samples are stored in.
SAMPLE_TYPES = {"s16le": "<i2", "f32le": "<f4", "mulaw": "u1", "alaw": "u1"}


def frame_bytes(encoding: str, channels: int) -> int | None:
    """Return the bytes of one sample of all ``channels``; None for a container, which may be cut anywhere."""
    kind = SAMPLE_TYPES.get(encoding)
    return None if kind is None else int(kind[-1]) * channels


class FrameCutter:
    """Cuts a stream of bytes at whole samples of all channels, and keeps what is left for the next piece.

    Attributes:
        rest: bytes of the sample that is not complete yet.
    """

    def __init__(self, size: int) -> None:
        """``size``: bytes of one sample of all channels."""
        self._size = size
        self.rest = b""

    def push(self, data: bytes) -> bytes:
        """Take bytes cut anywhere and return those of all samples that are complete now."""
        if self.rest:
            data = self.rest + data
        whole = len(data) - len(data) % self._size
        self.rest = data[whole:]
        return data[:whole]
