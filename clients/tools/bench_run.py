"""The benchmark of one model: recordings as streams in this process, decoded whole beside them, and scored.

All streams run before anything else, so that their memory and processor time are theirs alone.
"""

from __future__ import annotations

import itertools
import queue
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...model.media.audio import load_audio
from ...model.transcription.transcribe import transcribe
from ...model.whisper.languages import LANGUAGES
from ...model.whisper.network import Whisper
from ...streamer.audio.vad import make_detector
from ...streamer.commands import EndOfStream
from ...streamer.config import SAMPLE_RATE, StreamConfig
from ...streamer.engine.backend import SequentialBackend
from ...streamer.engine.cpu_backend import CpuBackend
from ...streamer.engine.engine import Engine
from ...streamer.events import Done, Event, SegmentClosed
from ...streamer.jobs import DecodeJob, DecodeResult
from ...streamer.session.session import StreamSession
from ...streamer.simulator import TimedEvent, simulate
from .bench_metrics import (
    CommittedWord,
    Erasure,
    committed_words,
    count_retracted,
    erasure,
    exact_spelling,
    spoken_ends,
)
from .clips import Clip, SpokenWord
from .scoring import ErrorCount, Scorer

__all__ = [
    "Bench",
    "BenchResult",
    "Clock",
    "MeteredBackend",
    "PeakMemory",
    "PlainRun",
    "StreamRun",
    "WholeText",
    "play_live",
    "run_stream",
    "score",
]

Clock = Literal["virtual", "free", "real"]

_STEP = SAMPLE_RATE // 10  # audio arrives in such steps


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """``costs`` has the wall seconds of each update: the same schedule can be run again with them."""

    events: tuple[TimedEvent, ...]
    audio_seconds: float
    cpu_seconds: float  # of the whole process, while the stream ran
    costs: tuple[float, ...]
    decoder_steps: int


class MeteredBackend(SequentialBackend):
    """A backend that keeps account.

    Args:
        backend: runs the jobs.
        drafts: False decodes every update again from nothing.

    Attributes:
        costs: wall seconds of each job.
        steps: decoder passes of all jobs.
    """

    def __init__(self, backend: SequentialBackend, *, drafts: bool = True) -> None:
        super().__init__()
        self.costs: list[float] = []
        self.steps = 0
        self._backend = backend
        self._drafts = drafts

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        if not self._drafts:
            job = replace(job, draft=())
        started = time.perf_counter()
        result = self._backend.decode_one(job)
        self.costs.append(time.perf_counter() - started)
        self.steps += result.steps
        return result


def run_stream(
    session: StreamSession,
    audio: NDArray[np.float32],
    meter: MeteredBackend,
    *,
    clock: Clock,
    costs: Sequence[float] | None = None,
    submit: Callable[[DecodeJob], Future[DecodeResult]] | None = None,
) -> StreamRun:
    """Play a recording through a session.

    Args:
        session: a fresh one.
        audio: float32 [S] at 16 kHz.
        meter: decodes, and has not decoded before.
        clock: ``virtual``: an update takes, on the stream's clock, the time that it took here, or its
            time of ``costs``. ``free``: it takes none. ``real``: audio comes at the speed of speech.
        costs: seconds of each update, on the virtual clock.
        submit: runs a job elsewhere, on the real clock.
    """
    given = itertools.chain(costs, itertools.repeat(0.0)) if costs is not None else None

    def cost(job: DecodeJob, result: DecodeResult) -> float:
        if clock == "free":
            return 0.0
        return next(given) if given is not None else meter.costs[-1]

    cpu = time.process_time()
    if clock == "real":
        assert submit is not None
        events = tuple(play_live(session, audio, submit))
    else:
        events = tuple(simulate(session, [audio], meter.decode_one, cost=cost))
    return StreamRun(
        events=events,
        audio_seconds=len(audio) / SAMPLE_RATE,
        cpu_seconds=time.process_time() - cpu,
        costs=tuple(meter.costs),
        decoder_steps=meter.steps,
    )


def play_live(
    session: StreamSession,
    audio: NDArray[np.float32],
    submit: Callable[[DecodeJob], Future[DecodeResult]],
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[TimedEvent]:
    """Yield the events of a session that gets ``audio`` at the speed of speech, while jobs run elsewhere.

    Args:
        session: a fresh one.
        audio: float32 [S] at 16 kHz.
        submit: runs a job, usually on another thread.
        clock: seconds; does not go back.
    """
    begun = clock()
    finished: queue.SimpleQueue[Future[DecodeResult]] = queue.SimpleQueue()
    running: Future[DecodeResult] | None = None
    at = 0
    ended = False

    def stamp(events: list[Event]) -> list[TimedEvent]:
        return [TimedEvent(clock() - begun, event) for event in events]

    while not session.finished:
        if running is None and (job := session.next_job(clock() - begun)) is not None:
            running = submit(job)
            running.add_done_callback(finished.put)
        if at == len(audio) and not ended:
            ended = True
            yield from stamp(session.request(EndOfStream()))
            continue
        step = audio[at : at + _STEP]
        wait: float | None = None
        if len(step) and session.room >= len(step):
            # its last sample has been spoken by then
            wait = max(0.0, (at + len(step)) / SAMPLE_RATE - (clock() - begun))
        elif running is None:
            raise RuntimeError("the session has no room, or is not finished, but has no job")
        try:
            done = finished.get(timeout=wait)
        except queue.Empty:
            yield from stamp(session.feed(step))
            at += len(step)
            continue
        running = None
        yield from stamp(session.finish_job(done.result(), clock() - begun))


class PeakMemory:
    """The most memory that this process has held since the object was made.

    Where the system cannot say that, it is the most that the process ever held.
    """

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak
        except OSError:
            self._status: Path | None = None
        else:
            self._status = Path("/proc/self/status")

    def megabytes(self) -> float:
        """Return the peak until now, in megabytes."""
        if self._status is not None:
            lines = self._status.read_text().splitlines()
            kilobytes = next(line.split()[1] for line in lines if line.startswith("VmHWM:"))
            return int(kilobytes) * 1024 / 1e6
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRun:
    """The same stream without drafts: every update decodes its whole window again."""

    text: str
    decoder_steps: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeText:
    """The transcript of the whole recording by the same model; words only where they were asked for."""

    text: str
    words: tuple[SpokenWord, ...] = ()


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
        """Seconds from the end of each word in the speech to its commit, for words that have an end."""
        pairs = zip(self.words, self.ends, strict=True)
        return [word.committed - end for word, end in pairs if end is not None]

    @property
    def shown_delays(self) -> list[float]:
        """Seconds from the end of each word in the speech until it was first shown."""
        pairs = zip(self.words, self.ends, strict=True)
        return [word.shown - end for word, end in pairs if end is not None]


class Bench:
    """Runs recordings on one model.

    Args:
        model: decodes them.
        clock: of all streams; see ``run_stream``.
        language: of all streams: a code, ``auto`` to have it detected, or None for the manifest's.
        options: fields of StreamConfig.
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
        self._backend = CpuBackend(model)
        self._clock = clock
        self._language = language
        self._config = StreamConfig(**(options or {}))
        # the first decode compiles and allocates: that is no part of any stream
        noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
        for endpoint in (False, True):
            self._backend.decode([DecodeJob(audio=noise, language="en", endpoint=endpoint)])

    def stream(self, clip: Clip) -> StreamRun:
        """Play one recording as a stream; raises AudioError if it cannot be read."""
        audio = load_audio(clip.path)
        meter = MeteredBackend(self._backend)
        if self._clock != "real":
            return run_stream(self._session(clip), audio, meter, clock=self._clock)
        engine = Engine(
            [meter], self._backend.tokenizer, model_name="bench", clock=time.perf_counter
        )
        try:
            return run_stream(
                self._session(clip), audio, meter, clock=self._clock, submit=engine.submit
            )
        finally:
            engine.close()

    def plain(self, clip: Clip, run: StreamRun) -> PlainRun:
        """Play the stream of ``run`` again, on the same schedule, without drafts."""
        meter = MeteredBackend(self._backend, drafts=False)
        audio = load_audio(clip.path)
        again = run_stream(self._session(clip), audio, meter, clock=self._clock, costs=run.costs)
        return PlainRun(
            text=_text(committed_words(again.events)),
            decoder_steps=again.decoder_steps,
            cpu_seconds=again.cpu_seconds,
        )

    def whole(self, clip: Clip, *, word_times: bool = False) -> WholeText:
        """Transcribe the whole recording, with the times of words if ``word_times``."""
        result = transcribe(
            self._model,
            load_audio(clip.path),
            language=self._language_of(clip),
            word_timestamps=word_times,
        )
        words = [
            SpokenWord(text=word["word"], start=word["start"], end=word["end"])
            for segment in result["segments"]
            for word in segment.get("words", ())
        ]
        return WholeText(text=result["text"].strip(), words=tuple(words))

    def _session(self, clip: Clip) -> StreamSession:
        config = replace(self._config, language=self._language_of(clip))
        return StreamSession(config, make_detector(config.detector), self._backend.tokenizer)

    def _language_of(self, clip: Clip) -> str | None:
        if not self._model.is_multilingual:
            return "en"
        language = self._language or clip.language
        return language if language in LANGUAGES else None


def score(bench: Bench, clip: Clip, run: StreamRun, plain: PlainRun | None = None) -> BenchResult:
    """Compare a stream with the reference, and with the transcript of the whole recording."""
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
        file=clip.name,
        language=language,
        by_character=scorer.by_character,
        audio_seconds=run.audio_seconds,
        text=text,
        text_offline=whole.text,
        errors=scorer.count(clip.references, text) if clip.references else None,
        errors_offline=scorer.count(clip.references, whole.text) if clip.references else None,
        words=words,
        ends=tuple(ends),
        erasure=erasure(events),
        erasure_exact=erasure(events, exact_spelling),
        retracted=count_retracted(events),
        flush_seconds=max(0.0, done.time - run.audio_seconds),
        cpu_seconds=run.cpu_seconds,
        updates=len(run.costs),
        decoder_steps=run.decoder_steps,
        plain=plain,
    )


def _language(clip: Clip, events: list[Any]) -> str:
    if clip.language in LANGUAGES:
        return str(clip.language)
    found = (event.language for event in events if isinstance(event, SegmentClosed))
    return clip.language or next(found, "en")


def _text(words: tuple[CommittedWord, ...]) -> str:
    return "".join(word.text for word in words).strip()
