"""The benchmark of one model: recordings as streams, the same by decoding them whole, and the scores.

All streams run before anything else, so that their memory and processor time are theirs alone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..model.audio import load_audio
from ..model.languages import LANGUAGES
from ..model.transcription import transcribe
from ..model.whisper import Whisper
from .backend import WhisperBackend
from .bench_clips import BenchClip, TimedWord
from .bench_metrics import (
    CommittedWord,
    Erasure,
    committed_words,
    erasure,
    exact,
    retracted,
    spoken_ends,
)
from .bench_runs import Clock, MeteredBackend, StreamRun, run_stream
from .bench_scoring import SPACELESS_LANGUAGES, ErrorCount, Scorer
from .config import StreamConfig
from .detectors import make_detector
from .engine import EngineThread
from .events import Done, SegmentClosed
from .jobs import DecodeJob
from .session import StreamSession

__all__ = ["Bench", "BenchResult", "PlainRun", "WholeText", "score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """The same stream with every update decoded again from nothing."""

    text: str
    decoder_steps: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """What the same model makes of the whole recording."""

    text: str
    words: tuple[TimedWord, ...] = ()  # where asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResult:
    """One recording's figures. Times are seconds; ``ends`` has, for each word, its end as spoken."""

    file: str
    language: str
    by_character: bool  # errors are counted in characters
    audio_seconds: float
    text: str
    text_offline: str
    errors: ErrorCount | None  # None: there is no reference text
    errors_offline: ErrorCount | None
    words: tuple[CommittedWord, ...]
    ends: tuple[float | None, ...]
    erasure: Erasure
    erasure_exact: Erasure  # capitals and punctuation count too
    retracted: int
    flush_seconds: float
    cpu_seconds: float
    updates: int
    decoder_steps: int
    plain: PlainRun | None = None

    @property
    def commit_delays(self) -> list[float]:
        pairs = zip(self.words, self.ends, strict=True)
        return [word.committed - end for word, end in pairs if end is not None]

    @property
    def shown_delays(self) -> list[float]:
        pairs = zip(self.words, self.ends, strict=True)
        return [word.shown - end for word, end in pairs if end is not None]


class Bench:
    """Runs recordings on one model.

    ``language`` is that of every stream: a code, ``auto`` to have it detected, or None for what the
    manifest says. ``options`` are fields of StreamConfig.
    """

    def __init__(
        self,
        model: Whisper,
        *,
        clock: Clock = "virtual",
        language: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = model
        self._backend = WhisperBackend(model)
        self._clock = clock
        self._language = language
        self._config = StreamConfig(**(options or {}))
        # the first decode compiles and allocates: that is no part of any stream
        noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
        for final in (False, True):
            self._backend.decode([DecodeJob(audio=noise, language="en", final=final)])

    def stream(self, clip: BenchClip) -> StreamRun:
        """Raises AudioError when the recording cannot be read."""
        audio = load_audio(clip.path)
        meter = MeteredBackend(self._backend)
        if self._clock != "real":
            return run_stream(self._session(clip), audio, meter, clock=self._clock)
        engine = EngineThread(
            [meter], self._backend.tokenizer, model_name="bench", clock=time.perf_counter
        )
        try:
            return run_stream(
                self._session(clip), audio, meter, clock=self._clock, submit=engine.submit
            )
        finally:
            engine.close()

    def plain(self, clip: BenchClip, run: StreamRun) -> PlainRun:
        """The stream of ``run`` again, on the same schedule, with no drafts."""
        meter = MeteredBackend(self._backend, drafts=False)
        audio = load_audio(clip.path)
        again = run_stream(self._session(clip), audio, meter, clock=self._clock, costs=run.costs)
        return PlainRun(
            text=_text(committed_words(again.events)),
            decoder_steps=again.decoder_steps,
            cpu_seconds=again.cpu_seconds,
        )

    def whole(self, clip: BenchClip, *, word_times: bool = False) -> WholeText:
        result = transcribe(
            self._model,
            load_audio(clip.path),
            language=self._language_of(clip),
            word_timestamps=word_times,
        )
        words = [
            TimedWord(text=word["word"], start=word["start"], end=word["end"])
            for segment in result["segments"]
            for word in segment.get("words", ())
        ]
        return WholeText(text=result["text"].strip(), words=tuple(words))

    def _session(self, clip: BenchClip) -> StreamSession:
        config = replace(self._config, language=self._language_of(clip))
        return StreamSession(config, make_detector(config.detector), self._backend.tokenizer)

    def _language_of(self, clip: BenchClip) -> str | None:
        if not self._model.is_multilingual:
            return "en"
        language = self._language or clip.language
        return language if language in LANGUAGES else None


def score(
    bench: Bench, clip: BenchClip, run: StreamRun, plain: PlainRun | None = None
) -> BenchResult:
    """Compares a stream with the reference, and with what decoding the whole recording gives."""
    events = [timed.event for timed in run.events]
    words = committed_words(run.events)
    language = _language(clip, events)
    scorer = Scorer(language)
    whole = bench.whole(clip)
    text = _text(words)
    ends = spoken_ends([word.text for word in words], clip.words, by_character=scorer.by_character)
    if 2 * sum(end is not None for end in ends) < len(words):  # no times, or of other words
        timed = bench.whole(clip, word_times=True).words
        ends = spoken_ends([word.text for word in words], timed, by_character=scorer.by_character)
    done = run.events[-1]
    assert isinstance(done.event, Done)
    return BenchResult(
        file=clip.path.name,
        language=language,
        by_character=language in SPACELESS_LANGUAGES,
        audio_seconds=run.audio_seconds,
        text=text,
        text_offline=whole.text,
        errors=scorer.count(clip.references, text) if clip.references else None,
        errors_offline=scorer.count(clip.references, whole.text) if clip.references else None,
        words=words,
        ends=tuple(ends),
        erasure=erasure(events),
        erasure_exact=erasure(events, exact),
        retracted=retracted(events),
        flush_seconds=max(0.0, done.time - run.audio_seconds),
        cpu_seconds=run.cpu_seconds,
        updates=len(run.costs),
        decoder_steps=run.decoder_steps,
        plain=plain,
    )


def _language(clip: BenchClip, events: list[Any]) -> str:
    if clip.language in LANGUAGES:
        return str(clip.language)
    found = (event.language for event in events if isinstance(event, SegmentClosed))
    return clip.language or next(found, "en")


def _text(words: tuple[CommittedWord, ...]) -> str:
    return "".join(word.text for word in words).strip()
