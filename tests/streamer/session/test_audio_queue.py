"""Audio in steps of the stream's clock, and requests at their places in it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.audio.ring_buffer import RingBuffer
from whisper_stream.streamer.audio.utterances import UtteranceTracker
from whisper_stream.streamer.commands import Flush
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.errors import BufferFullError
from whisper_stream.streamer.events import Event
from whisper_stream.streamer.session.audio_queue import AudioQueue

from ...helpers.scripted import LevelDetector, scripted


class Rig:
    def __init__(self, capacity: int = 60 * 16_000) -> None:
        self.tracker = UtteranceTracker(StreamConfig(), LevelDetector())
        self.queue = AudioQueue(RingBuffer(capacity), self.tracker)
        self.places: list[int] = []  # where requests were carried out

    def ask(self) -> None:
        self.queue.add(Flush())

    def run(self) -> list[Event]:
        events: list[Event] = []
        while True:
            if self.queue.take_request() is not None:
                self.places.append(self.queue.position)
            elif (happened := self.queue.step()) is not None:
                events += happened
            else:
                return events


def test_a_step_is_looked_at_once_it_is_whole() -> None:
    rig = Rig()
    rig.queue.append(np.full(1599, 0.5, np.float32))
    assert rig.queue.step() is None and rig.queue.position == 0
    rig.queue.append(np.full(2000, 0.5, np.float32))
    assert rig.queue.step() is not None and rig.queue.position == 1600
    assert rig.queue.step() is not None and rig.queue.position == 3200
    assert rig.queue.step() is None and rig.queue.received == 3599


def test_a_request_is_carried_out_at_its_very_sample_and_in_order() -> None:
    rig = Rig()
    rig.ask()
    rig.queue.append(np.zeros(500, np.float32))
    rig.ask()
    rig.ask()
    rig.queue.append(np.zeros(3000, np.float32))
    rig.run()
    assert rig.places == [0, 500, 500]
    assert rig.queue.position == 3200  # back on multiples of 0.1 s


def test_what_does_not_fit_is_refused_whole() -> None:
    rig = Rig(capacity=1000)
    with pytest.raises(BufferFullError):
        rig.queue.append(np.zeros(1001, np.float32))
    assert rig.queue.received == 0


@given(
    sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=20),
    requests=st.sets(st.integers(0, 40_000), max_size=4),
)
def test_any_cuts_give_the_same_events(sizes: list[int], requests: set[int]) -> None:
    audio = scripted([0.3, 0.1, 1.2, 0.06], tail=0.5).audio

    def run(cuts: set[int], *, late: bool) -> tuple[list[Event], list[int]]:
        rig, events, at = Rig(), [], 0
        for cut in sorted(cut for cut in cuts | requests | {len(audio)} if cut <= len(audio)):
            rig.queue.append(audio[at:cut])
            at = cut
            if cut in requests:
                rig.ask()
            if not late:
                events += rig.run()
        return events + rig.run(), rig.places

    ends = set(np.cumsum(sizes).tolist())
    assert run(ends, late=False) == run(set(), late=True)
