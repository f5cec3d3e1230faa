"""Events: all that a stream can tell its client.

Positions are absolute samples at 16 kHz, counted from the first sample received.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Commit",
    "Done",
    "Event",
    "Flushed",
    "Gap",
    "Lag",
    "LanguageDetected",
    "Partial",
    "SegmentClosed",
    "SpeechStarted",
    "SpeechStopped",
    "StreamWarning",
    "Word",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word at its place. Its ``text`` keeps the leading space, so joined texts give the transcript."""

    text: str
    start_sample: int
    end_sample: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted:
    """Somebody begins to speak at ``sample``."""

    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStopped:
    """Nobody has spoken since ``sample``; the utterance ends if the pause lasts."""

    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """The unstable words after all that is committed. It replaces the previous one; it may be empty."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Words that will never change. They follow every word committed before."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClosed:
    """A segment is complete: an utterance, or a part of a long one. All its words were committed before."""

    segment_id: int  # from 1
    words: tuple[Word, ...]
    start_sample: int
    end_sample: int
    language: str  # ISO code
    avg_logprob: float  # over its words
    no_speech_prob: (
        float  # of the decode that ended it, like the two below; 0.0, 1.0, 0.0: none did
    )
    compression_ratio: float
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageDetected:
    """The stream is taken to be in ``language`` from here on, by the audio up to ``sample``."""

    language: str  # ISO code
    probability: float
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """All audio received before the flush is committed."""

    flush_id: str
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A stretch of audio that could not be decoded, for ``reason``."""

    start_sample: int
    end_sample: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Decoding is ``behind_seconds`` behind the audio, with updates ``interval_seconds`` apart; 0.0: no more."""

    behind_seconds: float
    interval_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWarning:
    """Something went wrong and the stream goes on: ``code`` for programs, ``message`` for people."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The stream is complete, with ``samples`` of audio received and ``words`` committed in all."""

    samples: int
    words: int


Event = (
    SpeechStarted
    | SpeechStopped
    | Partial
    | Commit
    | SegmentClosed
    | LanguageDetected
    | Flushed
    | Gap
    | Lag
    | StreamWarning
    | Done
)
