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
    tracker.listen(audio)
    return [
        event
        for at in range(0, len(audio), 1600)
        for event in tracker.advance(min(1600, len(audio) - at))
    ]


def spans(tracker: UtteranceTracker) -> list[tuple[int, int | None]]:
    return [(utterance.start, utterance.end) for utterance in tracker.utterances]


def test_an_utterance_has_preroll_and_postroll() -> None:
    tracker = tracker_of()
    events = push(tracker, (1.0, 0), (2.0, 0.5), (0.5, 0))
    assert events == [SpeechStarted(sample=SECOND), SpeechStopped(sample=3 * SECOND)]
    assert spans(tracker) == [(round(0.6 * SECOND), None)]  # the pause is still short
    push(tracker, (0.2, 0))
    assert spans(tracker) == [(round(0.6 * SECOND), round(3.4 * SECOND))]
    assert tracker.position == round(3.7 * SECOND)


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
    tracker.listen(audio)
    tracker.advance(len(audio))
    assert spans(tracker) == [(0, round(1.4 * SECOND)), (round(2.1 * SECOND), None)]


def test_a_cut_in_speech_resumes_there() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5))
    tracker.cut(resume=True)
    assert spans(tracker) == [(0, SECOND), (SECOND, None)]
    assert tracker.utterances[1].waiting
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


def test_silence_never_passes_a_later_utterance() -> None:
    tracker = tracker_of()
    silent_until = 0
    for stretch in [(3.0, 0.0), (0.3, 0.5), (3.0, 0.0), (1.0, 0.5), (1.0, 0.0)] * 2:
        for _ in range(round(stretch[0] * 10)):
            push(tracker, (0.1, stretch[1]))
            if tracker.utterances:
                assert tracker.speech_start == tracker.utterances[0].start >= silent_until
            if tracker.utterances and tracker.utterances[0].end is not None:
                tracker.remove_first()
            silent_until = tracker.speech_start


def test_the_first_utterance_is_sure_once_something_was_said_after_a_cut() -> None:
    tracker = tracker_of()
    push(tracker, (1.0, 0.5))
    tracker.cut(resume=True)
    tracker.remove_first()
    assert tracker.first is None and len(tracker.utterances) == 1
    push(tracker, (0.1, 0.5))
    assert tracker.first is tracker.utterances[0]


def test_only_silence_before_the_next_voice_is_quiet() -> None:
    tracker = tracker_of()
    tracker.listen(np.repeat(np.array([0, 0.5, 0], np.float32), SECOND))
    assert tracker.quiet_samples == SECOND
    tracker.advance(SECOND)
    assert tracker.quiet_samples == 0
