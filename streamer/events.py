"""What a stream tells its client. Positions are absolute samples at 16 kHz from the first sample received."""

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
    """``text`` keeps its leading space, so joined texts give the transcript in every language."""

    text: str
    start_sample: int
    end_sample: int
    probability: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStarted:
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechStopped:
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """The unstable tail after everything committed. Replaces the previous one whole; may be empty."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Words that will never change. They follow every word committed before."""

    words: tuple[Word, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentClosed:
    """An utterance is complete: all its words are committed."""

    segment_id: int
    words: tuple[Word, ...]
    start_sample: int
    end_sample: int
    language: str
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageDetected:
    language: str
    probability: float
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """All audio received before the flush is committed."""

    flush_id: str
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Audio that was not decoded, and why."""

    start_sample: int
    end_sample: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    behind_seconds: float
    interval_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWarning:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """The stream is complete. ``samples`` is all audio received, ``words`` all words committed."""

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
