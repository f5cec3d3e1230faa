"""Slots of audio in memory that two processes share."""

from __future__ import annotations

import os

import numpy as np
import pytest
from whisper_stream.server.cluster.shared_audio import SLOT_SAMPLES, SharedAudioSlots


@pytest.fixture
def both() -> tuple[SharedAudioSlots, SharedAudioSlots]:
    descriptor = SharedAudioSlots.create()
    slots = SharedAudioSlots(descriptor), SharedAudioSlots(descriptor)
    os.close(descriptor)
    return slots


def test_audio_that_one_writes_the_other_reads(
    both: tuple[SharedAudioSlots, SharedAudioSlots],
) -> None:
    writer, reader = both
    pieces = [np.full(each, each / 100, np.float32) for each in (1, 50, 99)]
    slots = [writer.put(piece) for piece in pieces]
    assert slots == [0, 1, 2]
    for slot, piece in zip(slots, pieces, strict=True):
        assert slot is not None
        assert np.array_equal(reader.view(slot, len(piece)), piece)


def test_the_lowest_free_slot_is_taken_and_what_does_not_fit_is_not(
    both: tuple[SharedAudioSlots, SharedAudioSlots],
) -> None:
    writer, _ = both
    short = np.zeros(10, np.float32)
    assert writer.put(np.zeros(SLOT_SAMPLES + 1, np.float32)) is None
    taken = [writer.put(short) for _ in range(1024)]
    assert writer.put(short) is None
    assert sorted(slot for slot in taken if slot is not None) == list(range(1024))
    for slot in (700, 3, 9):
        writer.free(slot)
    assert [writer.put(short) for _ in range(3)] == [3, 9, 700]
