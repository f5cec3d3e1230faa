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

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..audio.ring_buffer import RingBuffer
from ..audio.utterances import UtteranceTracker
from ..audio.vad import SpeechDetector
from ..commands import Configure, EndOfStream, Flush, Request
from ..config import SAMPLE_RATE, StreamConfig
from ..events import Done, Event, Flushed, Gap, StreamWarning
from ..jobs import DecodedWord, DecodeJob, DecodeResult
from .audio_queue import AudioQueue
from .commit import HypothesisTracker
from .coverage import CoverageTracker
from .guards import drop_words_after_audio, is_no_speech, repeats_itself
from .language import LanguageTracker
from .transcript import MAX_PROMPT_TOKENS, CommittedText, TextCodec
from .window import CUT_KEEP_SECONDS, SessionStatistics, Window, WindowScheduler

__all__ = ["SessionStatistics", "StreamSession", "TextCodec"]

_TEXT_CONTEXT = 440  # tokens for prompt and text: the decoder's 448 less the special ones


class StreamSession:
    """The decisions about one stream: which windows are decoded, and which words are committed.

    It puts the pieces together, each of which has one job: the AudioQueue moves the stream's clock over
    the audio, the WindowScheduler says what is decoded next, the HypothesisTracker what is committed
    and shown, the LanguageTracker in which language.

    Args:
        config: options of the stream.
        detector: a fresh one; tells speech from noise.
        codec: of the model's tokenizer, for the client's prompt and hotwords.
    """

    def __init__(self, config: StreamConfig, detector: SpeechDetector, codec: TextCodec) -> None:
        self._config = config
        self._buffer = RingBuffer(round(config.buffer_seconds * SAMPLE_RATE))
        self._tracker = UtteranceTracker(config, detector)
        self._audio = AudioQueue(self._buffer, self._tracker)
        self._committed = CommittedText(config, codec)
        self._hypothesis = HypothesisTracker(config, self._committed)
        self._windows = WindowScheduler(config, self._buffer, self._tracker, self._committed)
        self._language = LanguageTracker(config)
        self._coverage = CoverageTracker(config, self._tracker.voice)
        self._trial_start: int | None = None  # where voice begins that is to be decoded on its own
        self._ending_trial = False  # the last audio of the utterance is decoded on its own
        self._without_prompt = False  # the last text was a loop: once more, from the audio alone
        self._flushes: list[tuple[str, int]] = []  # ids and samples; waiting, oldest first
        self._finishing = False  # no more audio comes
        self._ended = False  # and all of it was looked at
        self._finished = False

    # What goes in

    @property
    def room(self) -> int:
        """The most samples that ``feed`` takes now."""
        return self._buffer.room

    @property
    def finished(self) -> bool:
        """True once ``Done`` was returned: the stream is complete."""
        return self._finished

    def feed(self, samples: NDArray[np.float32]) -> list[Event]:
        """Take the next ``samples``: [S], 16 kHz mono in -1..1.

        Raises:
            BufferFullError: there are more than ``room``; none is taken.
            RuntimeError: the end of the stream was requested before.
        """
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
        """Do what ``command`` asks for, now that the clock has reached its place."""
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
        self._committed.configure(config)
        self._tracker.set_endpoint(config.endpoint_silence)

    # Decoding

    def next_job(self, now: float) -> DecodeJob | None:
        """Return the next window to decode; None where nothing is due, or a job is out.

        Args:
            now: seconds since the stream began.
        """
        window = self._windows.begin_job(now, again=self._again, trial_start=self._trial_start)
        if window is None:
            return None
        self._trial_start = None
        prefix = () if window.trial else self._committed.prefix
        draft = (
            () if window.trial else self._hypothesis.draft[: max(0, _TEXT_CONTEXT - len(prefix))]
        )
        text_tokens = max(len(prefix) + len(draft), _TEXT_CONTEXT - MAX_PROMPT_TOKENS)
        alone = window.trial or self._without_prompt
        room = 0 if alone else _TEXT_CONTEXT - text_tokens
        return DecodeJob(
            audio=self._buffer.view(window.start, window.end),
            prompt=self._committed.make_prompt(room),
            prefix=prefix,
            draft=draft,
            language=self._language.code,
            languages=self._config.languages,
            switch_above=self._language.get_switch_probability(
                fresh=self._windows.fresh or window.trial or self._ending_trial
            ),
            task=self._config.task,
            endpoint=window.endpoint or window.cut,
        )

    def finish_job(self, result: DecodeResult, now: float) -> list[Event]:
        """Take the ``result`` of the job that is out, at ``now`` seconds since the stream began.

        Raises:
            RuntimeError: no job is out.
        """
        window = self._windows.end_job(now, decoded=True)
        events = self._learn_language(result, window)
        events += self._take_result(result, window)
        events += self._windows.report_lag(window) + self._settle()
        return events + self._advance()

    def fail_job(self, reason: str, now: float) -> list[Event]:
        """Go on without a result: the job that is out could not be run.

        The audio of an update is decoded with the next one; that of any other job is declared lost.

        Args:
            reason: for the client.
            now: seconds since the stream began.

        Raises:
            RuntimeError: no job is out.
        """
        window = self._windows.end_job(now, decoded=False)
        self._without_prompt = False
        self._trial_start = None
        self._ending_trial = False
        self._coverage.end_trial(believed=False)
        self._hypothesis.reset()
        if not (window.endpoint or window.cut):
            warning = StreamWarning(code="decode_failed", message=f"an update failed: {reason}")
            return [warning, *self._advance()]
        events: list[Event] = [*self._hypothesis.show((), window), *self._close_segment()]
        start, end = self._windows.lose_window(window)
        self._committed.leave_window()
        events.insert(0, Gap(start_sample=start, end_sample=end, reason=reason))
        return events + self._settle() + self._advance()

    def statistics(self) -> SessionStatistics:
        """Return the account of all samples received so far."""
        return self._windows.statistics

    # Steps of a stream

    def _advance(self) -> list[Event]:
        """Look at the audio that waits, up to where an update is due or, if they are skipped, all."""
        events: list[Event] = []
        while True:
            self._begin_window()
            if not self._windows.skipping and self._windows.is_busy(again=self._again):
                break
            if (command := self._audio.take_request()) is not None:
                events += self._carry_out(command)
            elif (step := self._audio.step()) is not None:
                events += step
            else:
                break
            self._settle_silence()
        return events

    def _begin_window(self) -> None:
        """Begin a window for the next utterance, where one is due, with the text before it that still helps."""
        beginning = self._windows.begin_window()
        if beginning is None:
            return
        if beginning.fresh:
            self._committed.leave_window()
        if beginning.new_topic:
            self._committed.forget_history()

    def _settle(self) -> list[Event]:
        """Answer flushes, and the end of the stream, once nothing before them is left to decode."""
        self._settle_silence()
        events: list[Event] = []
        while self._flushes and self._flushes[0][1] <= self._windows.undecided_sample:
            flush_id, sample = self._flushes.pop(0)
            events.append(Flushed(flush_id=flush_id, sample=sample))
        if self._ended and not self._finished and self._windows.idle:
            self._finished = True
            self._windows.settle_all()
            events.append(Done(samples=self._audio.received, words=self._committed.count))
        return events

    def _settle_silence(self) -> None:
        """Let go of silent audio, and of the words kept with it."""
        if self._windows.settle_silence():
            self._committed.leave_window()

    # Steps of finish_job

    def _learn_language(self, result: DecodeResult, window: Window) -> list[Event]:
        """Take the language of ``result``; where it is another one, forget the text before it."""
        known = self._language.code is not None
        events = self._language.learn(result, window)
        if events and known:
            self._hypothesis.reset()
            self._committed.forget_history()
        return events

    def _take_result(self, result: DecodeResult, window: Window) -> list[Event]:
        """Commit and show the words of ``result``, as far as they can be trusted."""
        if window.trial:
            return self._end_trial(result, window)
        repeated, self._without_prompt = self._without_prompt, False
        if window.endpoint:
            return self._end_window(result, window)
        if window.cut:
            return self._cut_window(result.words, window)
        if repeats_itself(result):
            # nothing of a loop is committed or shown; without the prompt it may come right
            self._hypothesis.reset()
            self._without_prompt = not repeated and bool(self._committed.make_prompt())
            return []
        if not self._committed.segment_open and is_no_speech(result):
            self._hypothesis.reset()
            self._watch(window, ())
            return self._hypothesis.show((), window)
        events = self._hypothesis.add(result.words, window)
        self._watch(window, result.words)
        if (boundary := self._windows.find_trim_sample(window)) is not None:
            events += self._shorten_window(window, boundary)
        if self._committed.segment_seconds >= self._config.max_segment:
            # a speaker who makes no pause still gets segments that end
            events += self._close_segment()
        return events

    def _end_window(self, result: DecodeResult, window: Window) -> list[Event]:
        """Commit the last words of an utterance."""
        words = drop_words_after_audio(result.words, window.seconds)
        if not self._committed.segment_open and is_no_speech(result):
            words = ()
        alone, self._ending_trial = self._ending_trial, False
        unclear = alone and not self._coverage.believes(result, last=True)
        events: list[Event] = []
        if unclear:
            words = ()
            events += self._coverage.report(result, window.start, window.end)
        events += self._hypothesis.commit_all(words, window)
        events += self._committed.close_segment(result.language, result)
        self._trial_start = None
        self._coverage.reset()
        heard = self._find_heard(window, ())
        unheard = self._coverage.measure(heard, window.end)
        if unheard >= self._config.unheard_end and not alone:
            # the last voice of the utterance has no words: once more, without those before it
            start = self._windows.shorten(window, self._coverage.find_start(heard))
            self._committed.move_window(start)
            self._ending_trial = self._without_prompt = True
            return events
        self._committed.move_window(self._windows.end_window(window))
        return events

    # Coverage

    @property
    def _again(self) -> bool:
        """True where a window is to be decoded though nothing was said since the last."""
        return self._without_prompt or self._trial_start is not None

    def _find_heard(self, window: Window, words: Sequence[DecodedWord]) -> int:
        """Return the end of the last word of ``window``, committed or in the hypothesis ``words``."""
        heard = max(window.start, self._committed.end_sample or 0)
        if words:
            heard = max(heard, window.start + round(words[-1].end * SAMPLE_RATE))
        return heard

    def _watch(self, window: Window, words: Sequence[DecodedWord]) -> None:
        """Have voice decoded on its own that the hypothesis ``words`` of an update leaves without words."""
        stalled = self._coverage.add_update(self._find_heard(window, words), window.end)
        start = self._coverage.find_start(self._find_heard(window, ()))
        changes = bool(self._committed.prefix or self._committed.make_prompt())
        if stalled and changes and start >= window.start:
            self._trial_start = start

    def _end_trial(self, result: DecodeResult, window: Window) -> list[Event]:
        """Go on from ``window``, which was decoded on its own, if its text can be believed."""
        believed = self._coverage.believes(result, last=False)
        self._coverage.end_trial(believed=believed)
        if not believed:
            return []
        events = self._shorten_window(window, window.start)
        self._hypothesis.reset()
        return events + self._hypothesis.add(result.words, window)

    def _cut_window(self, words: tuple[DecodedWord, ...], window: Window) -> list[Event]:
        """Commit most of ``words`` as they are: the window is full, and agreement did not come."""
        keep_from = window.seconds - CUT_KEEP_SECONDS
        count = sum(1 for word in words if word.end <= keep_from)
        events = self._hypothesis.commit_first(words, count, window)
        return events + self._shorten_window(window, self._windows.find_cut_sample(window))

    def _shorten_window(self, window: Window, boundary: int) -> list[Event]:
        """Move the window's start to about sample ``boundary``; the segment before is closed."""
        events = self._close_segment()
        self._committed.move_window(self._windows.shorten(window, boundary))
        return events

    def _close_segment(self) -> list[Event]:
        """Close the open segment, if there is one, in the middle of an utterance."""
        return [*self._committed.close_segment(self._language.segment_code, None)]
