"""One stream as a state machine without I/O: audio and results in, jobs and events out.

    feed(samples) ──► utterances ──► next_job(now) ──► engine ──► finish_job(result, now)
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

import numpy as np
from numpy.typing import NDArray

from ..audio.ring_buffer import RingBuffer
from ..audio.utterances import UtteranceTracker
from ..audio.vad import SpeechDetector
from ..commands import Configure, EndOfStream, Flush, Request
from ..config import SAMPLE_RATE, StreamConfig
from ..events import Done, Event, Flushed, Gap, StreamWarning
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .cadence import Cadence
from .commit import HypothesisTracker, LagReporter
from .guards import is_no_speech, repeats_itself, within
from .language import LanguageTracker
from .transcript import MAX_PROMPT_TOKENS, TextCodec, Transcript
from .window import STALL_KEEP_SECONDS, AudioQueue, SessionStatistics, Window, WindowScheduler

__all__ = ["SessionStatistics", "StreamSession", "TextCodec"]

_TEXT_CONTEXT = 440  # tokens for prompt and text: the decoder's 448 less the special ones


class StreamSession:
    def __init__(self, config: StreamConfig, detector: SpeechDetector, codec: TextCodec) -> None:
        self._config = config
        self._codec = codec
        self._buffer = RingBuffer(round(config.buffer_seconds * SAMPLE_RATE))
        self._tracker = UtteranceTracker(config, detector)
        self._audio = AudioQueue(self._buffer, self._tracker)
        self._cadence = Cadence(config.update_interval)
        self._transcript = Transcript(config)
        self._transcript.expect(config, codec)
        self._tail = HypothesisTracker(config, self._transcript)
        self._windows = WindowScheduler(
            config, self._buffer, self._tracker, self._transcript, self._cadence
        )
        self._language = LanguageTracker(config)
        self._job: Window | None = None
        self._without_prompt = False  # the last text was a loop: once more, from the audio alone
        self._flushes: list[tuple[str, int]] = []  # ids and samples; waiting, oldest first
        self._lag = LagReporter()
        self._finishing = False  # no more audio comes
        self._ended = False  # and all of it was looked at
        self._finished = False

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
        self._audio.append(samples)
        return self._advance()

    def request(self, command: Request) -> list[Event]:
        """Queue ``command``: it is carried out once all audio received so far has been looked at.

        ``Flushed`` answers a flush, and ``Done`` the end of the stream, when all before is committed.
        """
        if isinstance(command, EndOfStream):
            self._finishing = True
        self._audio.add(command)
        return self._advance()

    def _carry_out(self, command: Request) -> list[Event]:
        match command:
            case Flush(id=flush_id):
                self._tracker.cut(resume=True)
                self._flushes.append((flush_id, self._audio.position))
                return self._settle()
            case Configure():
                self._configure(command.revise(self._config))
                return []
            case EndOfStream():
                self._tracker.cut(resume=False)
                self._ended = True
                return self._settle()

    def _configure(self, config: StreamConfig) -> None:
        """Use the options of ``config`` from here on, also for what is not decoded yet."""
        self._config = config
        self._language.configure(config)
        self._transcript.expect(config, self._codec)
        self._tracker.set_endpoint(config.endpoint_silence)

    # Decoding

    def next_job(self, now: float) -> DecodeJob | None:
        """The next window to decode, or None. One job is out at a time."""
        if self._job is not None:
            return None
        self._job = self._windows.due(again=self._without_prompt)
        if self._job is None:
            return None
        self._cadence.asked(now)
        return self._make_job(self._job)

    def _advance(self) -> list[Event]:
        """Looks at the audio that waits, up to where an update is due or, if they are skipped, all."""
        events: list[Event] = []
        while True:
            self._windows.enter()
            if not self._cadence.skipping and self._busy():
                break
            if (command := self._audio.take_request()) is not None:
                events += self._carry_out(command)
            elif (happened := self._audio.step()) is not None:
                events += happened
            else:
                break
            self._windows.forget_silence()
        return events

    def _busy(self) -> bool:
        """Whether a job is out, or would be."""
        return self._job is not None or self._windows.due(again=self._without_prompt) is not None

    def _make_job(self, window: Window) -> DecodeJob:
        prefix = self._transcript.prefix
        draft = self._tail.draft[: max(0, _TEXT_CONTEXT - len(prefix))]
        said = max(len(prefix) + len(draft), _TEXT_CONTEXT - MAX_PROMPT_TOKENS)
        return DecodeJob(
            audio=self._buffer.view(window.start, window.end),
            prompt=() if self._without_prompt else self._transcript.prompt(_TEXT_CONTEXT - said),
            prefix=prefix,
            draft=draft,
            language=self._language.code,
            languages=self._config.languages,
            switch_above=self._language.switch_above(fresh=self._windows.fresh),
            task=self._config.task,
            endpoint=window.endpoint or window.cut,
        )

    def finish_job(self, result: DecodeResult, now: float) -> list[Event]:
        """Takes the result of the job that is out."""
        job = self._job
        if job is None:
            raise RuntimeError("no job is out: call next_job first")
        self._job = None
        self._answered(job, now)
        events = self._learn_language(result, job)
        repeated, self._without_prompt = self._without_prompt, False
        self._windows.fresh = False
        words = result.words
        if job.endpoint:
            events += self._close_utterance(job, result)
        elif job.cut:
            events += self._cut_window(job, words)
        elif repeats_itself(result):
            # nothing of a loop is committed or shown; without the prompt it may come right
            self._tail.forget()
            self._without_prompt = not repeated and bool(self._transcript.prompt())
        elif not self._transcript.segment_open and is_no_speech(result):
            self._tail.forget()
            events += self._tail.show((), job)
        else:
            events += self._tail.add(words, job)
            if (boundary := self._windows.trim_point(job)) is not None:
                events += self._scroll(job, boundary)
            events += self._close_long_segment()
        events += self._tell_lag(job) + self._settle()
        return events + self._advance()

    def fail_job(self, reason: str, now: float) -> list[Event]:
        """The job that is out could not be run. Its audio is declared lost and the stream goes on."""
        job = self._job
        if job is None:
            raise RuntimeError("no job is out: call next_job first")
        self._job = None
        self._answered(job, now)
        self._without_prompt = False
        self._tail.forget()
        if not (job.endpoint or job.cut):
            warning = StreamWarning(code="decode_failed", message=f"an update failed: {reason}")
            return [warning, *self._advance()]
        events: list[Event] = [*self._tail.show((), job)]
        events += self._transcript.close_segment(self._language.name, None)
        lost_from = self._windows.lose(job)
        events.insert(0, Gap(start_sample=lost_from, end_sample=job.end, reason=reason))
        events += self._settle()
        return events + self._advance()

    def statistics(self) -> SessionStatistics:
        return self._windows.statistics(self._audio.received)

    # Steps of job_done

    def _answered(self, job: Window, now: float) -> None:
        self._windows.answered(job)
        received = self._audio.received
        self._cadence.answered(
            now,
            behind=(received - job.end) / SAMPLE_RATE,
            received=received / SAMPLE_RATE,
            update=not job.endpoint,
        )

    def _tell_lag(self, job: Window) -> list[Event]:
        """How far decoding is behind the audio, where that is much or no longer is."""
        received = self._audio.received
        waiting = self._audio.position < received or any(
            utterance.last_voiced > job.end for utterance in self._tracker.queue
        )
        skipping = self._cadence.skipping
        interval = self._cadence.interval if skipping else self._config.update_interval
        return self._lag.tell((received - job.end) / SAMPLE_RATE if waiting else 0.0, interval)

    def _learn_language(self, result: DecodeResult, job: Window) -> list[Event]:
        known = self._language.code is not None
        events = self._language.learn(result, job)
        if events and known:
            self._tail.forget()
            self._transcript.forget_prompt()
        return events

    def _close_long_segment(self) -> list[Event]:
        """A speaker who makes no pause still gets segments that end."""
        if self._transcript.segment_seconds < self._config.max_segment:
            return []
        return [*self._transcript.close_segment(self._language.name, None)]

    def _cut_window(self, job: Window, words: tuple[DecodedWord, ...]) -> list[Event]:
        """The window is full and agreement did not come: the confident part is committed as it is."""
        keep_from = job.seconds - STALL_KEEP_SECONDS
        sure = sum(1 for word in words if word.end <= keep_from)
        events = self._tail.commit_first(words, sure, job)
        return events + self._scroll(job, self._windows.cut_point(job))

    def _scroll(self, job: Window, boundary: int) -> list[Event]:
        """Moves the window's start to about ``boundary``; the segment before is closed."""
        events: list[Event] = [*self._transcript.close_segment(self._language.name, None)]
        self._windows.scroll(job, boundary)
        return events

    def _close_utterance(self, job: Window, result: DecodeResult) -> list[Event]:
        words = within(result.words, job.seconds)
        if not self._transcript.segment_open and is_no_speech(result):
            words = ()
        events = self._tail.commit_all(words, job)
        events += self._transcript.close_segment(result.language, result)
        self._windows.leave(job)
        return events

    def _settle(self) -> list[Event]:
        """Answers flushes, and the end of the stream, once nothing before them is left to decode."""
        self._windows.forget_silence()
        events: list[Event] = []
        while self._flushes and self._flushes[0][1] <= self._windows.undecided:
            flush_id, sample = self._flushes.pop(0)
            events.append(Flushed(flush_id=flush_id, sample=sample))
        idle = not self._tracker.queue and self._job is None
        if self._ended and not self._finished and idle:
            self._finished = True
            self._windows.settled = self._audio.received
            events.append(Done(samples=self._audio.received, words=self._transcript.count))
        return events
