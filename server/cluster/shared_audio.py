"""Shared memory for the audio of jobs: written by one process, read by another, copied once."""

from __future__ import annotations

import heapq
import mmap
import os
import sys
import tempfile

import numpy as np
from numpy.typing import NDArray

from ...streamer.config import SAMPLE_RATE

__all__ = ["SLOT_SAMPLES", "SharedAudioSlots", "create_shared_file"]

SLOT_SAMPLES = 30 * SAMPLE_RATE  # no window is longer
_SLOTS = 1024  # pages that were never written take no memory


def create_shared_file(size: int) -> int:
    """Return the descriptor of a new nameless file of ``size`` zero bytes, in memory where the system can."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("whisper-stream")
    else:
        with tempfile.TemporaryFile(prefix="whisper-stream-") as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class SharedAudioSlots:
    """A pool of slots with room for thirty seconds of audio each.

    One process writes: it alone calls ``put`` and ``free``. The other one reads with ``view``.

    Args:
        descriptor: of a file from ``create``; may be closed afterwards.
    """

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, _SLOTS * SLOT_SAMPLES * 4)
        self._samples = np.frombuffer(self._memory, "<f4").reshape(_SLOTS, SLOT_SAMPLES)
        # A heap, the lowest first: as few of them as possible are ever written.
        self._free = list(range(_SLOTS))

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new file of slots."""
        return create_shared_file(_SLOTS * SLOT_SAMPLES * 4)

    def put(self, audio: NDArray[np.float32]) -> int | None:
        """Copy ``audio`` [samples] into a free slot; return the slot, or None if it fits into none."""
        if not self._free or len(audio) > SLOT_SAMPLES:
            return None
        slot = heapq.heappop(self._free)
        self._samples[slot, : len(audio)] = audio
        return slot

    def free(self, slot: int) -> None:
        """Give ``slot`` back to the pool."""
        heapq.heappush(self._free, slot)

    def view(self, slot: int, samples: int) -> NDArray[np.float32]:
        """Return the first ``samples`` of a slot, without a copy; they change once the slot is freed."""
        view: NDArray[np.float32] = self._samples[slot, :samples]
        return view
