"""The buffer of the audio that a stream still needs, addressed by absolute sample index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import BufferFullError

__all__ = ["RingBuffer", "find_quietest"]

_FRAME = 320  # samples, 20 ms at 16 kHz
_FIRST_SIZE = 160_000  # samples, ten seconds


class RingBuffer:
    """A bounded buffer of float32 samples on the stream's clock.

        0 ......... start ............... end
        | forgotten | held (<= capacity)  | not received yet

    ``end`` counts every sample ever appended, so positions never shift. Memory is taken as it is needed: of
    a minute's room, a live stream seldom uses more than ten seconds.

    Args:
        capacity: the most samples held.
        first: samples that memory is taken for at the beginning.
    """

    def __init__(self, capacity: int, *, first: int = _FIRST_SIZE) -> None:
        self._capacity = capacity
        self._data = np.zeros(min(capacity, first), dtype=np.float32)
        self._start = 0  # absolute index of the oldest sample held
        self._end = 0  # absolute index after the newest sample

    @property
    def start(self) -> int:
        """Index of the oldest sample held."""
        return self._start

    @property
    def end(self) -> int:
        """Index after the newest sample: all samples ever appended."""
        return self._end

    @property
    def room(self) -> int:
        """Samples that ``append`` will take now."""
        return self._capacity - (self._end - self._start)

    def append(self, samples: NDArray[np.float32]) -> None:
        """Add ``samples``, [S]. Raises BufferFullError, and takes nothing, where they do not fit."""
        count = len(samples)
        if count > self.room:
            raise BufferFullError(count, self.room)
        if self._end - self._start + count > len(self._data):
            self._grow(self._end - self._start + count)
        at = self._end % len(self._data)
        first = min(count, len(self._data) - at)
        self._data[at : at + first] = samples[:first]
        self._data[: count - first] = samples[first:]
        self._end += count

    def _grow(self, least: int) -> None:
        """Take memory for ``least`` samples, and some to spare; samples held move to their new places."""
        held = self.view(self._start, self._end)
        self._data = np.zeros(min(self._capacity, max(least, 2 * len(self._data))), np.float32)
        at = self._start % len(self._data)
        first = min(len(held), len(self._data) - at)
        self._data[at : at + first] = held[:first]
        self._data[: len(held) - first] = held[first:]

    def view(self, start: int, end: int) -> NDArray[np.float32]:
        """Return a copy of the samples ``start`` to ``end``. Raises IndexError where they are not held."""
        if not self._start <= start <= end <= self._end:
            raise IndexError(f"samples {start}..{end} are not held: {self._start}..{self._end} are")
        size = len(self._data)
        at, count = start % size, end - start
        first = min(count, size - at)
        return np.concatenate((self._data[at : at + first], self._data[: count - first]))

    def forget(self, before: int) -> None:
        """Drop the samples before index ``before``. Raises IndexError where that is after ``end``."""
        if before > self._end:
            raise IndexError(
                f"cannot forget up to {before}: only {self._end} samples were received"
            )
        self._start = max(self._start, before)


def find_quietest(samples: NDArray[np.float32]) -> int:
    """Return the index in the middle of the quietest 20 ms of ``samples``, [S], or of all where shorter."""
    frames = samples[: len(samples) // _FRAME * _FRAME].reshape(-1, _FRAME)  # [S / 320, 320]
    if len(frames) == 0:
        return len(samples) // 2
    return int(np.square(frames).sum(axis=1).argmin()) * _FRAME + _FRAME // 2
