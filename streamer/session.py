"""One stream as a state machine without I/O: audio and results in, jobs and events out.

    feed(samples) ──► utterances ──► next_job(now) ──► engine ──► job_done(result, now)
                          ▲                                          │
                          └── audio that waited meanwhile ◄──────────┤
         events: speech, partial, commit, segment, flushed, done ◄───┘

While the engine keeps up, what is decoded depends on the audio alone: updates are due at fixed places,
and audio after one waits until it is decoded. So a stream whose audio came late, or in pieces, or to a
daemon that was killed meanwhile, says what it would have said. See ``Cadence`` for where that ends.

The shell that owns a session calls these methods from one thread, runs the jobs wherever it likes
(at most one of a session is out at a time), and passes every event on. Time is an argument: seconds
since the stream began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from .buffer import RingBuffer, quietest
from .cadence import Cadence
from .config import SAMPLE_RATE, StreamConfig
from .display import TailDisplay
from .events import (
    Commit,
    Done,
    Event,
    Flushed,
    Gap,
    Lag,
    LanguageDetected,
    Partial,
    StreamWarning,
    Word,
)
from .guards import is_no_speech, repeats_itself, within
from .intake import Intake
from .jobs import DecodedWord, DecodeJob, DecodeResult
from .policies import make_policy
from .transcript import MAX_PROMPT_TOKENS, Transcript
from .utterances import Utterance, UtteranceTracker
from .vad import SpeechDetector

__all__ = ["SessionStatistics", "StreamSession", "TextCodec"]

_FIRST_UPDATE_SECONDS = 1.0  # of audio in a window before its first decode
_STALL_KEEP_SECONDS = 2.0  # of a full window's end is left uncommitted when it must be cut
_TEXT_CONTEXT = 440  # tokens for prompt and text: the decoder's 448 less the special ones
_LAG_SECONDS = 2.0  # behind the live edge, from which on the client is told
_LAG_STEP_SECONDS = 1.0  # and told again when it has changed by as much
_LANGUAGE_CONFIDENCE = 0.5  # a detected language at least this likely is kept
_SWITCH_LANGUAGE = 0.8  # and given up, at a new utterance, for another as likely as this


class TextCodec(Protocol):
    def encode(self, text: str) -> list[int]:
        """Text -> tokens, without special ones."""
        ...


class SessionStatistics(NamedTuple):
    """Where every sample received has gone; the last four add up to ``received``."""

    received: int
    decoded: int  # part of a decoded, closed stretch
    silent: int  # gated: no speech in it
    gaps: int  # declared lost by a ``Gap``
    pending: int  # not settled yet


@dataclass(frozen=True, slots=True)
class _Flush:
    flush_id: str
    sample: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    start: int
    end: int
    final: bool  # the utterance ends here
    cut: bool  # the window is full: it must be shortened now

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / SAMPLE_RATE


class StreamSession:
    def __init__(self, config: StreamConfig, detector: SpeechDetector, codec: TextCodec) -> None:
        self._config = config
        self._codec = codec
        self._buffer = RingBuffer(round(config.buffer_seconds * SAMPLE_RATE))
        self._tracker = UtteranceTracker(config, detector)
        self._intake = Intake(self._buffer, self._tracker)
        self._policy = make_policy(config)
        self._display = TailDisplay(config.show_margin)
        self._cadence = Cadence(config.update_interval)
        self._transcript = Transcript(
            config,
            prompt=tuple(codec.encode(config.prompt)) if config.prompt else (),
            hotwords=self._hotword_tokens(config),
        )
        self._language = config.language
        self._window_start: int | None = None  # None: no utterance is being decoded
        self._context_start: int | None = None  # audio before the next utterance that may be kept
        self._context_end = 0  # where the last utterance ended
        self._decoded_to = 0  # end of the audio of the last job
        self._first_due = (
            0  # where the utterance's first update ends; later ones are multiples from there
        )
        self._job: _InFlight | None = None
        self._fresh = True  # nothing of the utterance is decoded, and no context was kept
        self._without_prompt = False  # the last text was a loop: once more, from the audio alone
        self._flushes: list[_Flush] = []  # waiting, oldest first
        self._shown: tuple[Word, ...] = ()  # the last partial
        self._lag = 0.0  # seconds behind, as last told
        self._finishing = False  # no more audio comes
        self._ended = False  # and all of it was looked at
        self._finished = False
        self._settled = 0  # samples before this are decoded, silent or lost
        self._decoded = 0
        self._gaps = 0

    # What goes in

    @property
    def room(self) -> int:
        """Samples that ``feed`` will take now."""
        return self._buffer.room

    @property
    def finished(self) -> bool:
        """Whether ``Done`` has been emitted."""
        return self._finished

    def feed(self, samples: NDArray[np.float32]) -> list[Event]:
        """Takes samples [n], 16 kHz mono in -1..1. Raises BufferFullError above ``room``."""
        if self._finishing:
            raise RuntimeError("the stream is finishing: no more audio can be fed")
        self._intake.append(samples)
        return self._advance()

    def flush(self, flush_id: str) -> list[Event]:
        """Asks for a commit of everything received so far; ``Flushed`` tells when it is done."""

        def cut() -> list[Event]:
            self._tracker.cut(resume=True)
            self._flushes.append(_Flush(flush_id, self._intake.looked))
            return self._settle()

        self._intake.ask(cut)
        return self._advance()

    def configure(self, config: StreamConfig) -> None:
        """From here on, language, languages, prompt, hotwords and endpoint_silence are those of
        ``config``, also for what is not decoded yet."""

        def change() -> list[Event]:
            self._configure(config)
            return []

        self._intake.ask(change)

    def _configure(self, config: StreamConfig) -> None:
        if config.language != self._config.language:
            self._language = config.language
        if config.prompt != self._config.prompt:
            self._transcript.set_prompt(tuple(self._codec.encode(config.prompt)))
        if config.hotwords != self._config.hotwords:
            self._transcript.set_hotwords(self._hotword_tokens(config))
        self._tracker.set_endpoint(config.endpoint_silence)
        self._config = replace(
            self._config,
            language=config.language,
            languages=config.languages,
            prompt=config.prompt,
            hotwords=config.hotwords,
            endpoint_silence=config.endpoint_silence,
        )

    def _hotword_tokens(self, config: StreamConfig) -> tuple[int, ...]:
        words = config.hotwords.strip()
        return tuple(self._codec.encode(f" {words}")) if words else ()

    def finish(self) -> list[Event]:
        """No more audio will come; ``Done`` follows when everything is committed."""

        def end() -> list[Event]:
            self._tracker.cut(resume=False)
            self._ended = True
            return self._settle()

        self._finishing = True
        self._intake.ask(end)
        return self._advance()

    # Decoding

    def next_job(self, now: float) -> DecodeJob | None:
        """The next window to decode, or None. One job is out at a time."""
        if self._job is not None:
            return None
        self._job = self._due()
        if self._job is None:
            return None
        self._cadence.asked(now)
        return self._make_job(self._job)

    def _advance(self) -> list[Event]:
        """Looks at the audio that waits, up to where an update is due or, if they are skipped, all."""
        events: list[Event] = []
        while True:
            self._enter_utterance()
            if not self._cadence.skipping and (self._job is not None or self._due() is not None):
                break
            happened = self._intake.step()
            if happened is None:
                break
            events += happened
            self._forget_silence()
        return events

    def _due(self) -> _InFlight | None:
        """The window to decode now, if no job is out."""
        start = self._window_start
        if start is None:
            return None
        utterance, looked = self._tracker.queue[0], self._intake.looked
        limit = start + round(self._config.max_window * SAMPLE_RATE)
        if utterance.end is not None and utterance.end <= limit:
            return _InFlight(start, utterance.end, final=True, cut=False)
        if looked >= limit:
            return _InFlight(start, limit, final=False, cut=True)
        # what follows the last voice brings no new words
        end = min(looked, utterance.last_voiced + SAMPLE_RATE // 5)
        if end < self._next_update(start) and not self._without_prompt:
            return None
        return _InFlight(start, end, final=False, cut=False)

    def _next_update(self, start: int) -> int:
        """Where the next update of the window that begins at ``start`` ends, at the earliest."""
        if self._decoded_to <= start:
            return start + round(_FIRST_UPDATE_SECONDS * SAMPLE_RATE)
        if self._cadence.skipping:
            return self._decoded_to + round(self._cadence.interval * SAMPLE_RATE)
        # back on the grid, wherever the last one ended; but not right behind it
        interval = max(1, round(self._config.update_interval * SAMPLE_RATE))
        passed = self._decoded_to + interval // 2 - self._first_due
        return self._first_due + max(0, ceil(passed / interval)) * interval

    def _make_job(self, window: _InFlight) -> DecodeJob:
        prefix = self._transcript.prefix
        draft = tuple(token for word in self._policy.latest for token in word.tokens)
        draft = draft[: max(0, _TEXT_CONTEXT - len(prefix))]
        said = max(len(prefix) + len(draft), _TEXT_CONTEXT - MAX_PROMPT_TOKENS)
        doubted = self._fresh and self._config.language is None and self._language is not None
        return DecodeJob(
            audio=self._buffer.view(window.start, window.end),
            prompt=() if self._without_prompt else self._transcript.prompt(_TEXT_CONTEXT - said),
            prefix=prefix,
            draft=draft,
            language=self._language,
            languages=self._config.languages,
            switch_above=_SWITCH_LANGUAGE if doubted else None,
            task=self._config.task,
            final=window.final or window.cut,
        )

    def job_done(self, result: DecodeResult, now: float) -> list[Event]:
        """Takes the result of the job that is out."""
        job = self._job
        if job is None:
            raise RuntimeError("no job is out: call next_job first")
        self._job = None
        self._answered(job, now)
        self._decoded_to = job.end
        events = self._learn_language(result, job)
        repeated, self._without_prompt = self._without_prompt, False
        self._fresh = False
        words = result.words
        if job.final:
            events += self._close_utterance(job, result)
        elif job.cut:
            events += self._cut_window(job, words)
        elif repeats_itself(result):
            # nothing of a loop is committed or shown; without the prompt it may come right
            self._forget_hypotheses()
            self._without_prompt = not repeated and bool(self._transcript.prompt())
        elif not self._transcript.segment_open and is_no_speech(result):
            self._forget_hypotheses()
            events += self._show(job, ())
        else:
            stable = self._policy.add(words, job.seconds)
            events += self._commit(job, words[:stable])
            events += self._show(job, self._display.add(words[stable:], job.seconds))
            events += self._trim(job)
            events += self._close_long_segment()
        events += self._tell_lag(job) + self._settle()
        return events + self._advance()

    def job_failed(self, reason: str, now: float) -> list[Event]:
        """The job that is out could not be run. Its audio is declared lost and the stream goes on."""
        job = self._job
        if job is None:
            raise RuntimeError("no job is out: call next_job first")
        self._job = None
        self._answered(job, now)
        self._without_prompt = False
        self._decoded_to = job.end  # tried again with new audio, not at once
        self._forget_hypotheses()
        if not (job.final or job.cut):
            warning = StreamWarning(code="decode_failed", message=f"an update failed: {reason}")
            return [warning, *self._advance()]
        lost_from = max(self._settled, job.start)  # context before it was decoded earlier
        events: list[Event] = [Gap(start_sample=lost_from, end_sample=job.end, reason=reason)]
        self._gaps += job.end - lost_from
        self._settled = job.end
        events += self._show(job, ())
        events += self._transcript.close_segment(self._language or "en", None)
        self._transcript.scroll(None)
        if job.final:
            self._leave_utterance()
            self._context_start = None  # not to be decoded again
        else:
            self._window_start = job.end
            self._buffer.forget(job.end)
        events += self._settle()
        return events + self._advance()

    def statistics(self) -> SessionStatistics:
        received = self._intake.received
        silent = self._settled - self._decoded - self._gaps
        return SessionStatistics(
            received, self._decoded, silent, self._gaps, received - self._settled
        )

    # Steps of job_done

    def _answered(self, job: _InFlight, now: float) -> None:
        received = self._intake.received
        self._cadence.answered(
            now,
            behind=(received - job.end) / SAMPLE_RATE,
            received=received / SAMPLE_RATE,
            update=not job.final,
        )

    @property
    def _interval(self) -> float:
        """Seconds between updates."""
        skipping = self._cadence.skipping
        return self._cadence.interval if skipping else self._config.update_interval

    def _tell_lag(self, job: _InFlight) -> list[Event]:
        """How far decoding is behind the audio, where that is much or no longer is."""
        waiting = self._intake.looked < self._intake.received or any(
            utterance.last_voiced > job.end for utterance in self._tracker.queue
        )
        behind = (self._intake.received - job.end) / SAMPLE_RATE if waiting else 0.0
        if behind < _LAG_SECONDS:
            behind = 0.0
        if abs(behind - self._lag) < _LAG_STEP_SECONDS:
            return []
        self._lag = behind
        return [Lag(behind_seconds=behind, interval_seconds=self._interval)]

    def _learn_language(self, result: DecodeResult, job: _InFlight) -> list[Event]:
        """The language is looked for until it is clear, and then kept; only a new utterance may change it."""
        probability = result.language_probability
        if self._config.language is not None or probability is None:
            return []
        if self._language is None and probability < _LANGUAGE_CONFIDENCE and not job.final:
            return []
        if result.language == self._language:
            return []
        if self._language is not None:
            self._forget_hypotheses()
            self._transcript.forget_prompt()
        self._language = result.language
        return [LanguageDetected(language=result.language, probability=probability, sample=job.end)]

    def _forget_hypotheses(self) -> None:
        self._policy.reset()
        self._display.reset()

    def _commit(self, job: _InFlight, words: tuple[DecodedWord, ...]) -> list[Event]:
        """Commits ``words``, the first ones of the newest hypothesis."""
        if not words:
            return []
        self._policy.committed(len(words))
        self._display.committed(len(words))
        return [Commit(words=self._transcript.commit(words, job.start, job.end))]

    def _show(self, job: _InFlight, words: tuple[DecodedWord, ...]) -> list[Event]:
        """The unstable tail, where it has changed."""
        shown = tuple(self._transcript.place(words, job.start, job.end))
        if shown == self._shown:
            return []
        self._shown = shown
        return [Partial(words=shown)]

    def _trim(self, job: _InFlight) -> list[Event]:
        """Shortens a window that has grown past the soft length, at a word that is committed."""
        long = job.end - job.start >= round(self._config.soft_window * SAMPLE_RATE)
        if not (long or self._transcript.crowded):
            return []
        boundary = self._transcript.trim_point(job.start, job.end)
        if boundary is None:
            return []
        return self._scroll(job, boundary)

    def _close_long_segment(self) -> list[Event]:
        """A speaker who makes no pause still gets segments that end."""
        if self._transcript.segment_seconds < self._config.max_segment:
            return []
        return [*self._transcript.close_segment(self._language or "en", None)]

    def _cut_window(self, job: _InFlight, words: tuple[DecodedWord, ...]) -> list[Event]:
        """The window is full and agreement did not come: the confident part is committed as it is."""
        keep_from = job.seconds - _STALL_KEEP_SECONDS
        sure = sum(1 for word in words if word.end <= keep_from)
        self._forget_hypotheses()
        self._policy.add(words, 0.0)
        events = self._commit(job, words[:sure])
        events += self._show(job, words[sure:])
        boundary = self._transcript.last_boundary()
        if boundary is None or boundary <= job.start:
            boundary = job.end - round(_STALL_KEEP_SECONDS * SAMPLE_RATE)  # nothing was understood
        return events + self._scroll(job, boundary)

    def _scroll(self, job: _InFlight, boundary: int) -> list[Event]:
        """Moves the window's start to the quietest place near ``boundary``; what lies before is closed."""
        # never past the speech: the utterance may turn out to have ended there
        last_voiced = self._tracker.queue[0].last_voiced
        boundary = min(boundary, max(job.start + 1, last_voiced - SAMPLE_RATE // 10))
        boundary = self._quietest(boundary, job)
        events: list[Event] = [*self._transcript.close_segment(self._language or "en", None)]
        self._transcript.scroll(boundary)
        self._account(boundary)
        self._window_start = boundary
        self._buffer.forget(boundary)
        return events

    def _quietest(self, sample: int, job: _InFlight) -> int:
        """The quietest place within 0.1 s of ``sample``: a cut there costs no sound."""
        low = max(job.start + SAMPLE_RATE // 50, sample - SAMPLE_RATE // 10)
        high = min(job.end, sample + SAMPLE_RATE // 10)
        if high <= low:
            return max(job.start, min(sample, job.end))
        return low + quietest(self._buffer.view(low, high))

    def _close_utterance(self, job: _InFlight, result: DecodeResult) -> list[Event]:
        words = within(result.words, job.seconds)
        if not self._transcript.segment_open and is_no_speech(result):
            words = ()
        self._forget_hypotheses()
        events: list[Event] = []
        if words:
            events.append(Commit(words=self._transcript.commit(words, job.start, job.end)))
        if self._shown:
            self._shown = ()
            events.append(Partial(words=()))
        events += self._transcript.close_segment(result.language, result)
        self._account(job.end)
        self._leave_utterance()
        return events

    def _enter_utterance(self) -> None:
        """Begins a window for the first utterance, once it is sure that there is one."""
        queue = self._tracker.queue
        # the tracker may still drop one that waits
        if self._window_start is None and queue and not queue[0].waiting:
            self._window_start = self._enter(queue[0])

    def _enter(self, utterance: Utterance) -> int:
        """Begins to decode ``utterance`` -> where its window starts.

        After a short pause the window goes on from what was said before, so that the model hears
        the sentence whole; after a long one it starts afresh.
        """
        self._decoded_to = utterance.start
        self._fresh = True
        start = utterance.start
        if self._context_start is not None:
            joined = utterance.start - self._context_end <= round(
                self._config.context_silence * SAMPLE_RATE
            )
            if joined:
                start = self._context_start
                self._fresh = False
            else:
                self._transcript.scroll(None)
        if utterance.start - self._context_end > round(
            self._config.prompt_reset_silence * SAMPLE_RATE
        ):
            self._transcript.forget_prompt()  # a new topic, as likely as not
        self._context_start = None
        self._buffer.forget(start)
        first = _FIRST_UPDATE_SECONDS if self._fresh else self._config.update_interval
        self._first_due = utterance.start + round(first * SAMPLE_RATE)
        return start

    def _leave_utterance(self) -> None:
        """The first utterance is decoded; its last seconds stay as context for the next."""
        done = self._tracker.queue.popleft()
        assert done.end is not None and self._window_start is not None
        earliest = done.end - round(self._config.context_seconds * SAMPLE_RATE)
        start = self._window_start
        if start < earliest:
            start = self._transcript.boundary_after(earliest) or done.end
        self._transcript.scroll(start)
        self._context_start, self._context_end = start, done.end
        self._window_start = None
        self._buffer.forget(start)

    # Accounts

    def _account(self, upto: int) -> None:
        """Samples up to ``upto`` of the window are decoded for good."""
        start = self._window_start if self._window_start is not None else self._settled
        # context was counted when it was first decoded
        self._decoded += max(0, upto - max(start, self._settled))
        self._settled = max(self._settled, upto)

    def _forget_silence(self) -> None:
        """Lets go of audio in which nobody speaks."""
        if self._window_start is not None:
            return
        upto = self._tracker.queue[0].start if self._tracker.queue else self._tracker.silence_start
        self._settled = max(self._settled, upto)
        silence = upto - self._context_end
        if self._context_start is None:
            self._buffer.forget(upto)
        elif silence > round(self._config.context_silence * SAMPLE_RATE):
            self._transcript.scroll(None)
            self._context_start = None
            self._buffer.forget(upto)

    def _settle(self) -> list[Event]:
        """Answers flushes, and the end of the stream, once nothing before them is left to decode."""
        self._forget_silence()
        queue = self._tracker.queue
        pending = queue[0].start if queue and not queue[0].waiting else self._intake.looked
        if self._window_start is not None:
            pending = min(pending, self._window_start)
        events: list[Event] = []
        while self._flushes and self._flushes[0].sample <= pending:
            flush = self._flushes.pop(0)
            events.append(Flushed(flush_id=flush.flush_id, sample=flush.sample))
        idle = not self._tracker.queue and self._job is None
        if self._ended and not self._finished and idle:
            self._finished = True
            self._settled = self._intake.received
            events.append(Done(samples=self._intake.received, words=self._transcript.count))
        return events
