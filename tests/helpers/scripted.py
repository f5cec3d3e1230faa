"""Doubles and makers for tests of the streamer.

Scripted audio stands for speech: a word is a run of samples of one level, and the level says which
word. ``FakeDecoder`` reads the script back from a job's audio alone, so what a stream commits can be
compared with what was "said".
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from whisper_stream.streamer.commands import EndOfStream, Flush
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.events import (
    Commit,
    Done,
    Event,
    Flushed,
    Gap,
    Partial,
    SegmentClosed,
    SpeechStarted,
    SpeechStopped,
    Word,
)
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession

__all__ = [
    "ENGLISH",
    "MAX_WORDS",
    "WORD_SAMPLES",
    "ChaoticDecoder",
    "FakeCodec",
    "FakeDecoder",
    "Ledger",
    "LevelDetector",
    "Played",
    "Script",
    "committed_words",
    "drain",
    "make_session",
    "pcm16",
    "scripted",
    "tokens_of",
    "word_text",
]

Samples = NDArray[np.float32]
E = TypeVar("E")

ENGLISH = StreamConfig(language="en")

WORD_SAMPLES = 4800  # every scripted word lasts 0.3 s
MAX_WORDS = 1500  # different words a script may use
_BASE, _STEP = 2048, 16  # level of word w in 1/32768: exact in s16 and in float32


def word_text(word: int) -> str:
    return f" w{word}"


def tokens_of(word: int) -> tuple[int, ...]:
    """One token for even words, two for odd ones."""
    return (word,) if word % 2 == 0 else (word, 20_000 + word)


def _cut_token(word: int, samples: int) -> int:
    return 40_000 + WORD_SAMPLES * word + samples


def _word_of(token: int) -> int:
    """The word that ``token`` belongs to."""
    return token % 20_000 if token < 40_000 else (token - 40_000) // WORD_SAMPLES


@dataclass(frozen=True)
class Script:
    audio: Samples
    words: tuple[tuple[int, int], ...]  # (word, first sample)


def scripted(gaps: Sequence[float], *, tail: float = 1.0, first_word: int = 0) -> Script:
    """One word after each of ``gaps`` seconds of digital silence, then ``tail`` seconds of it."""
    pieces: list[Samples] = []
    words: list[tuple[int, int]] = []
    at = 0
    for index, gap in enumerate(gaps):
        silence = round(gap * SAMPLE_RATE)
        word = (first_word + index) % MAX_WORDS
        level = (_BASE + _STEP * word) / 32768.0
        pieces += [np.zeros(silence, np.float32), np.full(WORD_SAMPLES, level, np.float32)]
        words.append((word, at + silence))
        at += silence + WORD_SAMPLES
    pieces.append(np.zeros(round(tail * SAMPLE_RATE), np.float32))
    return Script(np.concatenate(pieces), tuple(words))


def pcm16(samples: Samples) -> bytes:
    """s16le bytes of scripted audio, exactly."""
    return (samples * 32768.0).astype("<i2").tobytes()


class LevelDetector:
    """A frame is speech where its mean level says so."""

    def is_speech(self, frame: Samples) -> bool:
        return float(np.abs(frame).mean()) > 0.01


class FakeCodec:
    """One token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text]


def make_session(config: StreamConfig | None = None) -> StreamSession:
    return StreamSession(config or StreamConfig(language="en"), LevelDetector(), FakeCodec())


def _runs(audio: Samples) -> Iterable[tuple[int, int, int]]:
    """(word, first, end) of every run of one level."""
    levels = np.rint(audio.astype(np.float64) * 32768.0).astype(np.int64)
    edges = np.flatnonzero(np.diff(levels)) + 1
    bounds = [0, *edges.tolist(), len(levels)]
    for first, end in zip(bounds, bounds[1:], strict=False):
        if end > first and levels[first] >= _BASE:
            yield (int(levels[first]) - _BASE) // _STEP, first, end


@dataclass
class FakeDecoder:
    """Reads scripted words, which follow each other in their order. A word cut by the end of the audio
    is misheard; less than half of a word at the start of the audio is not heard. A forced prefix
    takes the words up to its last one."""

    jobs: list[DecodeJob] = field(default_factory=list)

    def __call__(self, job: DecodeJob) -> DecodeResult:
        self.jobs.append(job)
        words: list[DecodedWord] = []
        for word, first, end in _runs(job.audio):
            tokens, text = tokens_of(word), word_text(word)
            if end - first < WORD_SAMPLES:
                if first == 0 and end - first < WORD_SAMPLES // 2:
                    continue
                if first > 0:  # cut off
                    tokens, text = (_cut_token(word, end - first),), f"{text}-"
            start_seconds, end_seconds = first / SAMPLE_RATE, end / SAMPLE_RATE
            words.append(
                DecodedWord(
                    text=text,
                    tokens=tokens,
                    start=start_seconds,
                    end=end_seconds,
                    probability=0.9,
                )
            )
        if job.prefix:
            last = _word_of(job.prefix[-1])
            words = [word for word in words if _word_of(word.tokens[0]) > last]
        tokens = tuple(token for word in words for token in word.tokens)
        accepted = 0
        for ours, drafted in zip(tokens, job.draft, strict=False):
            if ours != drafted:
                break
            accepted += 1
        return DecodeResult(
            tokens=tokens,
            words=tuple(words),
            language=job.language or "en",
            language_probability=None if job.language else 0.9,
            avg_logprob=-0.1,
            accepted_draft=accepted,
            steps=1 + len(tokens) - accepted,
        )


@dataclass
class ChaoticDecoder:
    """Says anything, at any time, but always the same for the same job: the worst of decoders."""

    seed: int = 0
    most_words: int = 12
    jobs: list[DecodeJob] = field(default_factory=list)

    def __call__(self, job: DecodeJob) -> DecodeResult:
        self.jobs.append(job)
        audio = zlib.crc32(job.audio.tobytes())
        dice = random.Random(f"{self.seed} {audio} {job.prefix} {job.prompt}")
        seconds = len(job.audio) / SAMPLE_RATE
        words = []
        for index in range(dice.randrange(self.most_words + 1)):
            word = index % 7 if dice.random() < 0.8 else dice.randrange(50)
            start = dice.uniform(-1.0, seconds + 1.0)
            words.append(
                DecodedWord(
                    text=dice.choice([word_text(word), word_text(word) + ".", ""]),
                    tokens=tokens_of(word),
                    start=start,
                    end=start + dice.uniform(-0.5, 2.0),
                    probability=dice.random(),
                    attended=dice.uniform(-1.0, seconds + 1.0),
                )
            )
        asked = job.language is None or job.switch_above is not None
        return DecodeResult(
            tokens=tuple(token for word in words for token in word.tokens),
            words=tuple(words),
            language=dice.choice(job.languages or ("en", "de")) if asked else job.language or "",
            language_probability=dice.random() if asked else None,
            avg_logprob=-2 * dice.random(),
            no_speech_prob=dice.random(),
            looped=dice.random() < 0.2,
        )


def committed_words(events: Iterable[Event]) -> list[Word]:
    return [word for event in events if isinstance(event, Commit) for word in event.words]


class Ledger:
    """Follows one stream from outside and asserts what every stream promises."""

    def __init__(self, session: StreamSession) -> None:
        self.session = session
        self.fed = 0
        self.events: list[Event] = []
        self.words: list[Word] = []
        self.partial: tuple[Word, ...] = ()
        self.flushes: list[str] = []  # asked for and not answered, oldest first
        self._closed = 0  # words in closed segments
        self._segments = 0
        self._gap_samples = 0
        self._gap_end = 0
        self._speaking = False
        self._speech_sample = 0
        self._done = False
        self._before = session.statistics()

    def feed(self, samples: Samples) -> None:
        self.fed += len(samples)
        self.observe(self.session.feed(samples))

    def flush(self, flush_id: str) -> None:
        self.flushes.append(flush_id)
        self.observe(self.session.request(Flush(id=flush_id)))

    def observe(self, events: Iterable[Event]) -> None:
        for event in events:
            assert not self._done, f"{event} after Done"
            self.events.append(event)
            self._observe(event)
        now, before = self.session.statistics(), self._before
        assert now.received_samples == self.fed
        assert (
            now.received_samples
            == now.decoded_samples + now.silent_samples + now.lost_samples + now.pending_samples
        )
        assert min(now) >= 0
        assert now.lost_samples == self._gap_samples
        for earlier, later in zip(before[:4], now[:4], strict=True):
            assert later >= earlier, f"{before} -> {now}"
        self._before = now
        assert self.session.finished == self._done

    def _observe(self, event: Event) -> None:
        match event:
            case Commit(words=words):
                assert words
                for word in words:
                    last = self.words[-1] if self.words else None
                    if last is not None:
                        assert last.start_sample <= word.start_sample
                        assert last.end_sample <= word.start_sample
                    assert 0 <= word.start_sample <= word.end_sample <= self.fed
                    self.words.append(word)
            case Partial(words=words):
                ends = self.words[-1].end_sample if self.words else 0
                assert all(ends <= word.start_sample for word in words)
                assert all(w.start_sample <= w.end_sample <= self.fed for w in words)
                assert words != self.partial
                self.partial = words
            case SegmentClosed():
                self._segments += 1
                assert event.segment_id == self._segments
                assert list(event.words) == self.words[self._closed :]
                assert event.start_sample == event.words[0].start_sample
                assert event.end_sample == event.words[-1].end_sample
                self._closed = len(self.words)
            case Flushed(flush_id=flush_id, sample=sample):
                assert flush_id == self.flushes.pop(0)
                assert sample <= self.fed
            case Gap():
                assert self._gap_end <= event.start_sample < event.end_sample <= self.fed
                self._gap_end = event.end_sample
                self._gap_samples += event.end_sample - event.start_sample
            case SpeechStarted(sample=sample) | SpeechStopped(sample=sample):
                assert self._speaking == isinstance(event, SpeechStopped)
                assert self._speech_sample <= sample <= self.fed
                self._speaking, self._speech_sample = not self._speaking, sample
            case Done():
                assert (event.samples, event.words) == (self.fed, len(self.words))
                assert self._closed == len(self.words)
                assert self.partial == ()
                assert self.flushes == []
                assert self.session.statistics().pending_samples == 0
                self._done = True
            case _:
                pass


def drain(ledger: Ledger, decoder: FakeDecoder | ChaoticDecoder, *, limit: int = 1000) -> None:
    """Runs jobs until the session has none. More than ``limit`` in a row is an endless loop."""
    for _ in range(limit):
        job = ledger.session.next_job(0.0)
        if job is None:
            return
        ledger.observe(ledger.session.finish_job(decoder(job), 0.0))
    raise AssertionError(f"still busy after {limit} jobs without new audio")


@dataclass
class Played:
    """A stream of scripted audio in steps of 0.1 s, whose jobs are run at once.

    Args:
        change: alters what the decoder says.
    """

    config: StreamConfig = ENGLISH
    change: Callable[[DecodeJob, DecodeResult], DecodeResult] = lambda job, result: result
    jobs: list[DecodeJob] = field(default_factory=list)
    fed_at: list[int] = field(default_factory=list)  # samples fed when each job was made
    answers: list[list[Event]] = field(default_factory=list)  # events of each result

    def __post_init__(self) -> None:
        self.session = make_session(self.config)
        self.ledger = Ledger(self.session)

    def play(self, audio: Samples) -> Played:
        for at in range(0, len(audio), 1600):
            self.ledger.feed(audio[at : at + 1600])
            self.run_jobs()
        return self

    def finish(self) -> Played:
        self.ledger.observe(self.session.request(EndOfStream()))
        self.run_jobs()
        assert self.session.finished
        return self

    def run_jobs(self) -> None:
        for _ in range(1000):
            job = self.session.next_job(0.0)
            if job is None:
                return
            self.jobs.append(job)
            self.fed_at.append(self.ledger.fed)
            events = self.session.finish_job(self.change(job, FakeDecoder()(job)), 0.0)
            self.answers.append(events)
            self.ledger.observe(events)
        raise AssertionError("still busy after 1000 jobs without new audio")

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.ledger.events if isinstance(event, kind)]

    @property
    def text(self) -> str:
        return "".join(word.text for word in self.ledger.words)
