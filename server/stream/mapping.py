"""Translation of a session's events into messages of the wire."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import assert_never

from ...streamer import events
from ...streamer.config import SAMPLE_RATE
from ..protocol import messages as wire

__all__ = ["to_wire"]


def to_wire(event: events.Event, samples_received: int) -> wire.ServerMessage:
    """Return the message for an event; its ``seq`` is set when it is sent.

    Args:
        event: positions in samples at 16 kHz become seconds, to the millisecond.
        samples_received: per channel at the client's own rate; ``done`` reports it.
    """
    match event:
        case events.Partial(words=words):
            return wire.Partial(text=_text(words), words=_words(words))
        case events.Commit(words=words):
            return wire.Commit(text=_text(words), words=_words(words))
        case events.SegmentClosed():
            return _segment(event)
        case events.SpeechStarted(sample=sample):
            return wire.SpeechStarted(time=_seconds(sample))
        case events.SpeechStopped(sample=sample):
            return wire.SpeechStopped(time=_seconds(sample))
        case events.LanguageDetected():
            return wire.Language(
                language=event.language,
                probability=_number(event.probability),
                time=_seconds(event.sample),
            )
        case events.Flushed():
            return wire.Flushed(id=event.flush_id, time=_seconds(event.sample))
        case events.Gap():
            start, end = _seconds(event.start_sample), _seconds(event.end_sample)
            return wire.Gap(start=start, end=end, reason=event.reason)
        case events.Lag():
            return wire.Lag(
                behind=_number(event.behind_seconds), interval=_number(event.interval_seconds)
            )
        case events.StreamWarning():
            return wire.Warning(code=event.code, message=event.message)
        case events.Done():
            duration = _seconds(event.samples)
            return wire.Done(duration=duration, samples=samples_received, words=event.words)
        case _:
            assert_never(event)


def _segment(event: events.SegmentClosed) -> wire.Segment:
    return wire.Segment(
        id=event.segment_id,
        text=_text(event.words),
        start=_seconds(event.start_sample),
        end=_seconds(event.end_sample),
        language=event.language,
        words=_words(event.words),
        avg_logprob=_number(event.avg_logprob),
        no_speech_prob=_number(event.no_speech_prob),
        compression_ratio=_number(event.compression_ratio),
        temperature=_number(event.temperature),
    )


def _text(words: Iterable[events.Word]) -> str:
    return "".join(word.text for word in words)


def _words(words: Iterable[events.Word]) -> tuple[wire.Word, ...]:
    return tuple(
        wire.Word(
            text=word.text,
            start=_seconds(word.start_sample),
            end=_seconds(word.end_sample),
            probability=_number(word.probability),
        )
        for word in words
    )


def _seconds(sample: int) -> float:
    return round(sample / SAMPLE_RATE, 3)


def _number(value: float) -> float:
    """JSON has no infinity and no NaN; neither says anything useful to a client."""
    return round(value, 3) if math.isfinite(value) else 0.0
