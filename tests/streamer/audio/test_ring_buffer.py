"""The ring buffer against a plain list of everything received."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.audio.ring_buffer import RingBuffer, find_quietest
from whisper_stream.streamer.errors import BufferFullError

OPERATIONS = st.lists(st.tuples(st.sampled_from(["append", "forget"]), st.integers(0, 12)))


@given(capacity=st.integers(1, 20), first=st.integers(1, 20), operations=OPERATIONS)
def test_holds_what_was_appended_and_not_forgotten(
    capacity: int, first: int, operations: list[tuple[str, int]]
) -> None:
    buffer = RingBuffer(capacity, first=first)
    received: list[float] = []
    start = 0
    for kind, count in operations:
        if kind == "forget":
            start = max(start, min(count + start - 3, len(received)))
            buffer.forget(start)
        elif count > capacity - (len(received) - start):
            with pytest.raises(BufferFullError) as caught:
                buffer.append(np.zeros(count, np.float32))
            assert (caught.value.offered, caught.value.room) == (count, buffer.room)
        else:
            new = [float(len(received) + i) for i in range(count)]
            buffer.append(np.array(new, np.float32))
            received += new
        assert (buffer.start, buffer.end) == (start, len(received))
        assert buffer.room == capacity - (len(received) - start)
        assert buffer.view(start, len(received)).tolist() == received[start:]
        middle = (start + len(received)) // 2
        assert buffer.view(middle, len(received)).tolist() == received[middle:]
        assert buffer.view(start, middle).tolist() == received[start:middle]


def test_a_view_is_a_copy() -> None:
    buffer = RingBuffer(4)
    buffer.append(np.ones(3, np.float32))
    view = buffer.view(0, 3)
    view[:] = 7.0
    assert buffer.view(0, 3).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("start", "end"), [(1, 4), (2, 7), (5, 4), (-1, 3)])
def test_views_outside_what_is_held_are_errors(start: int, end: int) -> None:
    buffer = RingBuffer(8)
    buffer.append(np.arange(6, dtype=np.float32))
    buffer.forget(2)
    with pytest.raises(IndexError, match="2..6"):
        buffer.view(start, end)


def test_forgetting_what_has_not_come_is_an_error() -> None:
    buffer = RingBuffer(8)
    buffer.append(np.zeros(3, np.float32))
    with pytest.raises(IndexError, match="only 3"):
        buffer.forget(4)
    buffer.forget(2)
    buffer.forget(1)  # already gone: nothing to do
    assert buffer.start == 2


def test_the_quietest_place_is_the_middle_of_the_quietest_frame() -> None:
    samples = np.full(3200, 0.5, dtype=np.float32)
    samples[1600:1920] = 0.1
    assert find_quietest(samples) == 1760
    assert find_quietest(samples[:100]) == 50
