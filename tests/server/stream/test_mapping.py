"""Events of a stream as messages: every kind, units, rounding, figures that JSON cannot hold."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.mapping import to_wire
from whisper_stream.streamer import events

WORDS = (
    events.Word(text=" a", start_sample=0, end_sample=8_000, probability=0.123456),
    events.Word(text="b", start_sample=8_000, end_sample=8_001, probability=1.0),
)
SAID = (
    wire.Word(text=" a", start=0.0, end=0.5, probability=0.123),
    wire.Word(text="b", start=0.5, end=0.5, probability=1.0),
)
CASES: list[tuple[events.Event, wire.ServerMessage]] = [
    (events.SpeechStarted(sample=5_120), wire.SpeechStarted(time=0.32)),
    (events.SpeechStopped(sample=16_007), wire.SpeechStopped(time=1.0)),
    (events.Partial(words=()), wire.Partial(text="", words=())),
    (events.Partial(words=WORDS), wire.Partial(text=" ab", words=SAID)),
    (events.Commit(words=WORDS), wire.Commit(text=" ab", words=SAID)),
    (
        events.SegmentClosed(
            segment_id=3,
            words=WORDS,
            start_sample=0,
            end_sample=8_001,
            language="en",
            avg_logprob=-math.inf,
            no_speech_prob=math.nan,
            compression_ratio=1.23456,
            temperature=0.2,
        ),
        wire.Segment(
            id=3,
            text=" ab",
            start=0.0,
            end=0.5,
            language="en",
            words=SAID,
            avg_logprob=0.0,
            no_speech_prob=0.0,
            compression_ratio=1.235,
            temperature=0.2,
        ),
    ),
    (
        events.LanguageDetected(language="de", probability=0.98765, sample=1_600),
        wire.Language(language="de", probability=0.988, time=0.1),
    ),
    (events.Flushed(flush_id="f", sample=160), wire.Flushed(id="f", time=0.01)),
    (
        events.Gap(start_sample=16_000, end_sample=32_000, reason="why"),
        wire.Gap(start=1.0, end=2.0, reason="why"),
    ),
    (
        events.Lag(behind_seconds=1.23456, interval_seconds=0.5),
        wire.Lag(behind=1.235, interval=0.5),
    ),
    (
        events.StreamWarning(code="loop", message="text"),
        wire.Warning(code="loop", message="text"),
    ),
    (events.Done(samples=24_000, words=2), wire.Done(duration=1.5, samples=66_150, words=2)),
]


@pytest.mark.parametrize(("event", "message"), CASES, ids=lambda value: type(value).__name__)
def test_an_event_becomes_its_message(event: events.Event, message: wire.ServerMessage) -> None:
    assert to_wire(event, samples_received=66_150) == message


def test_every_kind_of_event_is_covered() -> None:
    assert {type(event) for event, _ in CASES} == set(get_args(events.Event))


def test_eight_hours_keep_the_millisecond() -> None:
    sample = 8 * 3600 * 16_000 + 16
    assert to_wire(events.SpeechStarted(sample=sample), 0) == wire.SpeechStarted(time=28_800.001)
