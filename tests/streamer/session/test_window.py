"""Which stretch of audio is decoded next."""

from __future__ import annotations

import numpy as np
from whisper_stream.streamer.audio.ring_buffer import RingBuffer
from whisper_stream.streamer.audio.utterances import UtteranceTracker
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.session.cadence import Cadence
from whisper_stream.streamer.session.transcript import Transcript
from whisper_stream.streamer.session.window import AudioQueue, Window, WindowScheduler

from ...helpers.scripted import LevelDetector, scripted

CONFIG = StreamConfig(language="en", soft_window=4.0, max_window=6.0)


class Rig:
    """One stream without a decoder: windows are taken as they fall due."""

    def __init__(self, gaps: list[float], tail: float = 1.0) -> None:
        self.audio = scripted(gaps, tail=tail).audio
        buffer = RingBuffer(60 * 16_000)
        self.cadence = Cadence(CONFIG.update_interval)
        tracker = UtteranceTracker(CONFIG, LevelDetector())
        self.intake = AudioQueue(buffer, tracker)
        transcript = Transcript(CONFIG)
        self.windows = WindowScheduler(CONFIG, buffer, tracker, transcript, self.cadence)
        self.intake.append(self.audio)

    def next(self) -> Window | None:
        """Looks at audio until a window is due, or there is no more."""
        while True:
            self.windows.enter()
            window = self.windows.due(again=False)
            if window is not None or self.intake.step() is None:
                return window


def test_updates_end_where_the_clock_says_and_not_where_the_audio_does() -> None:
    rig = Rig([0.0] + [0.1] * 20)
    ends = []
    for _ in range(5):
        window = rig.next()
        assert window is not None and not window.endpoint and window.start == 0
        rig.windows.answered(window)
        ends.append(window.end / 16_000)
    assert np.allclose(ends, [1.0, 1.4, 1.8, 2.2, 2.6])


def test_a_skipped_update_leaves_the_later_ones_where_they_were() -> None:
    rig = Rig([0.0] + [0.1] * 20)
    first = rig.next()
    assert first is not None
    rig.windows.answered(Window(0, round(1.9 * 16_000), endpoint=False, cut=False))
    second = rig.next()
    assert second is not None and second.end == round(2.2 * 16_000)


def test_an_utterance_ends_with_a_final_window_and_is_left() -> None:
    rig = Rig([0.5], tail=2.0)
    window = rig.next()
    assert window is not None and window.endpoint
    rig.windows.leave(window)
    assert rig.windows.decoded == window.end - window.start
    assert rig.next() is None and rig.windows.undecided == rig.intake.position


def test_a_full_window_is_cut() -> None:
    rig = Rig([0.0] + [0.1] * 30)
    window = rig.next()
    while window is not None and not window.cut:
        rig.windows.answered(window)
        window = rig.next()
    assert window is not None and window.seconds == CONFIG.max_window
    assert rig.windows.cut_point(window) == window.end - 2 * 16_000  # nothing is committed


def test_lost_audio_is_counted_once() -> None:
    rig = Rig([0.5], tail=2.0)
    window = rig.next()
    assert window is not None
    assert rig.windows.lose(window) == window.start
    assert (rig.windows.lost, rig.windows.decoded) == (window.end - window.start, 0)
    assert rig.windows.settled == window.end
