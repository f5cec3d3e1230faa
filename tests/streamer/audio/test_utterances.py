"""Where utterances begin and end: expected positions worked out by hand from the script."""

from __future__ import annotations

import numpy as np
import pytest
from whisper_stream.streamer.audio.utterances import UtteranceTracker
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Event, SpeechStarted, SpeechStopped

from ...helpers.scripted import LevelDetector

CONFIG = StreamConfig(endpoint_silence=0.6, preroll=0.4)
SECOND = 16_000


def tracker_of(config: StreamConfig = CONFIG) -> UtteranceTracker:
    return UtteranceTracker(config, LevelDetector())


def push(tracker: UtteranceTracker, *stretches: tuple[float, float]) -> list[Event]:
    """(seconds, level) after one another, in steps of 0.1 s."""
    audio = np.concatenate([np.full(round(s * SECOND), v, np.float32) for s, v in stretches])
    return [e for at in range(0, len(audio), 1600) for e in tracker.push(audio[at : at + 1600])]


def spans(tracker: UtteranceTracker) -> list[tuple[int, int | None]]:
    return [(utterance.start, utterance.end) for utterance in tracker.queue]


def test_an_utterance_has_preroll_and_tail() -> None:
    tracker = tracker_of()
    events = push(tracker, (1.0, 0), (2.0, 0.5), (0.5, 0))
    assert events == [SpeechStarted(sample=SECOND), SpeechStopped(sample=3 * SECOND)]
    assert spans(tracker) == [(round(0.6 * SECOND), None)]  # the pause is still short
    push(tracker, (0.2, 0))
    assert spans(tracker) == [(round(0.6 * SECOND), round(3.4 * SECOND))]
    assert tracker.received == round(3.7 * SECOND)


def test_a_pause_shorter_than_the_endpoint_goes_on() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5), (0.5, 0), (1.0, 0.5), (2.0, 0))
    assert spans(tracker) == [(0, round(2.9 * SECOND))]


def test_a_longer_pause_makes_two_and_they_never_overlap() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5), (0.7, 0), (1.0, 0.5), (2.0, 0))
    assert spans(tracker) == [
        (0, round(1.4 * SECOND)),
        (round(1.4 * SECOND), round(3.1 * SECOND)),  # preroll would reach into the first
    ]


def test_an_endpoint_and_a_start_inside_one_chunk() -> None:
    tracker = tracker_of()
    audio = np.concatenate(
        [np.full(round(s * SECOND), v, np.float32) for s, v in [(1, 0.5), (1.5, 0), (1, 0.5)]]
    )
    tracker.push(audio)
    assert spans(tracker) == [(0, round(1.4 * SECOND)), (round(2.1 * SECOND), None)]


def test_a_cut_in_speech_resumes_there() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5))
    tracker.cut(resume=True)
    assert spans(tracker) == [(0, SECOND), (SECOND, None)]
    assert tracker.queue[1].waiting
    tracker.cut(resume=True)  # nothing more to cut
    assert spans(tracker) == [(0, SECOND), (SECOND, None)]
    push(tracker, (0.5, 0.5), (1.0, 0))
    assert spans(tracker) == [(0, SECOND), (SECOND, round(1.9 * SECOND))]


def test_a_cut_with_nothing_said_after_it_leaves_no_utterance() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5))
    tracker.cut(resume=True)
    push(tracker, (1.0, 0))
    assert spans(tracker) == [(0, SECOND)]


def test_a_cut_at_the_end_of_the_stream() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0), (1.0, 0.5))
    tracker.cut(resume=False)
    assert spans(tracker) == [(round(0.6 * SECOND), 2 * SECOND)]


@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_a_cut_in_silence_does_nothing(seconds: float) -> None:
    tracker = tracker_of()
    push(tracker, (seconds, 0))
    tracker.cut(resume=True)
    assert spans(tracker) == []
    assert not tracker.speaking


def test_silence_start_never_passes_a_later_utterance() -> None:
    tracker = tracker_of()
    passed = 0
    for stretch in [(3.0, 0.0), (0.3, 0.5), (3.0, 0.0), (1.0, 0.5), (1.0, 0.0)] * 2:
        for _ in range(round(stretch[0] * 10)):
            before = len(tracker.queue)
            push(tracker, (0.1, stretch[1]))
            if len(tracker.queue) > before:
                assert tracker.queue[-1].start >= passed
            passed = tracker.silence_start
