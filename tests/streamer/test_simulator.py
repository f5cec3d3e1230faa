"""The simulator: live order of events on a clock of its own."""

from __future__ import annotations

import numpy as np
import pytest
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Commit, Done, SpeechStarted
from whisper_stream.streamer.simulator import TimedEvent, simulate

from ..helpers.scripted import FakeDecoder, Script, make_session, scripted, word_text


def run(script: Script, *, cost: float = 0.0, buffer: float = 60.0) -> list[TimedEvent]:
    session = make_session(StreamConfig(language="en", buffer_seconds=buffer))
    return list(simulate(session, [script.audio], FakeDecoder(), cost=lambda job, result: cost))


def words_of(events: list[TimedEvent]) -> list[str]:
    return [w.text for t in events if isinstance(t.event, Commit) for w in t.event.words]


@pytest.mark.parametrize("cost", [0.0, 0.25, 1.0, 7.0])
def test_nothing_is_lost_however_slow_the_decoder(cost: float) -> None:
    script = scripted([0.5] + [0.1] * 20 + [2.0] + [0.1] * 20)
    events = run(script, cost=cost)
    assert words_of(events) == [word_text(word) for word, _ in script.words]
    assert events[-1].event == Done(samples=len(script.audio), words=len(script.words))


@pytest.mark.parametrize("cost", [0.0, 0.3, 2.0])
def test_time_goes_forward_and_words_come_after_they_are_said(cost: float) -> None:
    events = run(scripted([0.5] + [0.1] * 30, tail=2.0), cost=cost)
    times = [item.time for item in events]
    assert times == sorted(times)
    for item in events:
        if isinstance(item.event, Commit):
            assert item.event.words[-1].end_sample / 16_000 <= item.time
            assert item.time >= cost


def test_a_slower_decoder_decodes_less_often() -> None:
    script = scripted([0.1] * 40)

    def decodes(cost: float) -> int:
        decoder = FakeDecoder()
        audio = [script.audio]
        list(simulate(make_session(), audio, decoder, cost=lambda job, result: cost))
        return len(decoder.jobs)

    assert decodes(1.5) < decodes(0.0) / 2


def test_speech_is_told_within_a_moment() -> None:
    script = scripted([2.0, 0.1, 0.1], tail=1.0)
    (started,) = [t for t in run(script) if isinstance(t.event, SpeechStarted)]
    assert started.event == SpeechStarted(sample=32_000)
    assert 2.0 <= started.time <= 2.4


def test_a_decoder_slower_than_the_buffer_makes_the_audio_wait() -> None:
    script = scripted([0.1] * 200)
    events = run(script, cost=45.0, buffer=30.0)
    assert words_of(events) == [word_text(word) for word, _ in script.words]


def test_no_audio_is_done_at_once() -> None:
    session = make_session()
    empty = [np.zeros(0, np.float32)]
    assert list(simulate(session, empty, FakeDecoder())) == [
        TimedEvent(0.0, Done(samples=0, words=0))
    ]
