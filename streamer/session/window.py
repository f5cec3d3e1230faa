"""The schedule of windows: the stretches of a stream's audio that are decoded, one after the other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from ..audio.ring_buffer import RingBuffer, find_quietest
from ..audio.utterances import Utterance, UtteranceTracker
from ..config import SAMPLE_RATE, StreamConfig
from ..events import Event
from .cadence import Cadence, LagReporter
from .transcript import CommittedText

__all__ = ["CUT_KEEP_SECONDS", "Beginning", "SessionStatistics", "Window", "WindowScheduler"]

CUT_KEEP_SECONDS = 2.0  # of a full window's end is left uncommitted when it must be cut
_FIRST_UPDATE_SECONDS = 1.0  # of audio in a window before its first decode
_VOICE_END = (
    SAMPLE_RATE // 5
)  # samples after the last voiced frame that may still hold a word's end
_NEAR = SAMPLE_RATE // 10  # samples around a word's end among which the quietest place is sought
_LEAST_STEP = (
    SAMPLE_RATE // 50
)  # samples that a window is shortened by, at least, where there is room


class SessionStatistics(NamedTuple):
    """An account of every sample received; the last four add up to ``received_samples``."""

    received_samples: int
    decoded_samples: int  # part of a decoded, closed stretch
    silent_samples: int  # gated: no speech in it
    lost_samples: int  # declared lost by a ``Gap``
    pending_samples: int  # not settled yet


@dataclass(frozen=True, slots=True)
class Window:
    """The samples of one job."""

    start: int
    end: int
    endpoint: bool  # the utterance ends here
    cut: bool  # the window is full: it must be shortened now
    trial: bool = False  # voice that no word explains, on its own

    @property
    def seconds(self) -> float:
        """Length of its audio."""
        return (self.end - self.start) / SAMPLE_RATE


class Beginning(NamedTuple):
    """The context of an utterance's first window."""

    fresh: bool  # none: no audio of it was decoded before
    new_topic: bool  # after so long a silence that the text before it is no context


class WindowScheduler:
    """Grows a window over the tracker's first utterance, shortens it at its start, and ends it with the
    utterance, whose last seconds may be the beginning of the next window.

        settled: decoded, silent or lost | window ......... looked at
                                         ^ start  ^ decoded_to

    It removes utterances from the tracker once they are decoded, and lets the buffer forget audio that
    no window needs. The committed text it only reads: its caller moves that along with the window.
    """

    def __init__(
        self,
        config: StreamConfig,
        buffer: RingBuffer,
        tracker: UtteranceTracker,
        committed: CommittedText,
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._tracker = tracker
        self._committed = committed
        self._cadence = Cadence(config.update_interval)
        self._lag = LagReporter()
        self._job: Window | None = None  # the window that is being decoded
        self._utterance: Utterance | None = None  # the one that is being decoded
        self._start = 0  # where its window begins
        self._fresh = True  # nothing of the utterance is decoded, and no context was kept
        self._context_start: int | None = None  # audio before the next utterance that may be kept
        self._context_end = 0  # where the last utterance ended
        self._decoded_to = 0  # end of the audio of the last job
        self._first_due = 0  # where the utterance's first update ends: the origin of the grid
        self._settled = 0  # samples before this are decoded, silent or lost
        self._decoded = 0  # samples of closed stretches
        self._lost = 0  # samples declared lost

    @property
    def fresh(self) -> bool:
        """True while nothing of the utterance is decoded, and its window has no context."""
        return self._fresh

    @property
    def skipping(self) -> bool:
        """True while the engine is so slow that updates are skipped."""
        return self._cadence.skipping

    @property
    def idle(self) -> bool:
        """True while no job is out and there is nothing to decode."""
        return self._job is None and not self._tracker.utterances

    @property
    def undecided_sample(self) -> int:
        """Sample from which on audio is not decoded for good."""
        first = self._tracker.first
        pending = self._tracker.position if first is None else first.start
        return pending if self._utterance is None else min(pending, self._start)

    @property
    def statistics(self) -> SessionStatistics:
        """The account of all audio received so far."""
        received = self._buffer.end
        silent = self._settled - self._decoded - self._lost
        return SessionStatistics(
            received, self._decoded, silent, self._lost, received - self._settled
        )

    # Jobs

    def is_busy(self, *, again: bool) -> bool:
        """Return True where a job is out, or would be if it was asked for."""
        return self._job is not None or self._find_due(again=again) is not None

    def begin_job(
        self, now: float, *, again: bool, trial_start: int | None = None
    ) -> Window | None:
        """Return the window to decode now; None where there is none, or one is being decoded.

        Args:
            now: seconds since the stream began.
            again: the window is due even if nothing was said since the last.
            trial_start: the sample to begin at instead, unless the utterance ends here.
        """
        if self._job is not None:
            return None
        self._job = self._find_due(again=again)
        if self._job is not None and trial_start is not None:
            if not (self._job.endpoint or self._job.cut):
                self._job = replace(self._job, start=trial_start, trial=True)
        if self._job is not None:
            self._cadence.begin_job(now)
        return self._job

    def end_job(self, now: float, *, decoded: bool) -> Window:
        """Return the window that was being decoded, which has come back ``decoded`` or has failed.

        Raises:
            RuntimeError: no job is out.
        """
        job = self._job
        if job is None:
            raise RuntimeError("no job is out: call next_job first")
        self._job = None
        self._decoded_to = job.end
        self._fresh = self._fresh and not decoded
        received = self._buffer.end
        self._cadence.end_job(
            now,
            behind=(received - job.end) / SAMPLE_RATE,
            received=received / SAMPLE_RATE,
            update=not job.endpoint,
        )
        return job

    def report_lag(self, window: Window) -> list[Event]:
        """Return an event where decoding, now at the end of ``window``, is late, or no longer is."""
        received = self._buffer.end
        waiting = self._tracker.position < received or any(
            utterance.last_voiced > window.end for utterance in self._tracker.utterances
        )
        behind = (received - window.end) / SAMPLE_RATE if waiting else 0.0
        skipping = self._cadence.skipping
        interval = self._cadence.interval if skipping else self._config.update_interval
        return self._lag.report(behind, interval)

    def _find_due(self, *, again: bool) -> Window | None:
        """Return the window that is due, if any. ``again``: even if nothing was said since the last."""
        start, utterance = self._start, self._utterance
        if utterance is None:
            return None
        position = self._tracker.position
        limit = start + round(self._config.max_window * SAMPLE_RATE)
        if utterance.end is not None and utterance.end <= limit:
            return Window(start, utterance.end, endpoint=True, cut=False)
        if position >= limit:
            return Window(start, limit, endpoint=False, cut=True)
        end = min(position, utterance.last_voiced + _VOICE_END)
        if end < self._find_next_update(start) and not again:
            return None
        return Window(start, end, endpoint=False, cut=False)

    def _find_next_update(self, start: int) -> int:
        """Return the sample where the next update of the window from ``start`` ends, at the earliest."""
        if self._decoded_to <= start:
            return start + round(_FIRST_UPDATE_SECONDS * SAMPLE_RATE)
        if self._cadence.skipping:
            return self._decoded_to + round(self._cadence.interval * SAMPLE_RATE)
        # back on the grid, wherever the last one ended; but not right behind it
        interval = max(1, round(self._config.update_interval * SAMPLE_RATE))
        passed = self._decoded_to + interval // 2 - self._first_due
        return self._first_due + max(0, ceil(passed / interval)) * interval

    # Where the window begins

    def begin_window(self) -> Beginning | None:
        """Begin a window for the first utterance, where it is not begun and sure that there is one."""
        if self._utterance is not None or (utterance := self._tracker.first) is None:
            return None
        self._utterance = utterance
        silence = (utterance.start - self._context_end) / SAMPLE_RATE
        # After a short pause the window goes on from what was said before, so that the model hears the
        # sentence whole; after a long one it starts afresh.
        kept = self._context_start if silence <= self._config.context_silence else None
        self._fresh = kept is None
        self._start = utterance.start if kept is None else kept
        self._context_start = None
        self._forget(self._start)
        self._decoded_to = utterance.start
        first = _FIRST_UPDATE_SECONDS if self._fresh else self._config.update_interval
        self._first_due = utterance.start + round(first * SAMPLE_RATE)
        return Beginning(self._fresh, silence > self._config.prompt_reset_silence)

    def find_trim_sample(self, window: Window) -> int | None:
        """Return the end of a committed word to shorten ``window`` at, where it or its text is too long."""
        long = window.end - window.start >= round(self._config.soft_window * SAMPLE_RATE)
        if not (long or self._committed.crowded):
            return None
        return self._committed.find_trim_sample(window.start, window.end)

    def find_cut_sample(self, window: Window) -> int:
        """Return the sample to shorten the full ``window`` at: after all that is committed."""
        boundary = self._committed.end_sample
        if boundary is None or boundary <= window.start:  # nothing was understood
            return window.end - round(CUT_KEEP_SECONDS * SAMPLE_RATE)
        return boundary

    def shorten(self, window: Window, boundary: int) -> int:
        """Move the window's start to the quietest place near sample ``boundary``; return that place."""
        # never past the speech: the utterance may turn out to have ended there
        assert self._utterance is not None
        last_voiced = self._utterance.last_voiced
        boundary = min(boundary, max(window.start + 1, last_voiced - _NEAR))
        start = self._find_quietest(boundary, window)
        self._settle_decoded(start)
        self._start = start
        self._forget(start)
        return start

    def _find_quietest(self, sample: int, window: Window) -> int:
        """Return the quietest place near ``sample``: a cut there costs no sound."""
        low = max(window.start + _LEAST_STEP, sample - _NEAR)
        high = min(window.end, sample + _NEAR)
        if high <= low:
            return max(window.start, min(sample, window.end))
        return low + find_quietest(self._buffer.view(low, high))

    def end_window(self, window: Window) -> int:
        """Settle the first utterance, which is decoded for good.

        Returns:
            The sample from which its audio is kept, as context for the next utterance.
        """
        self._settle_decoded(window.end)
        return self._remove_utterance()

    def lose_window(self, window: Window) -> tuple[int, int]:
        """Give up the audio of ``window``, which had to be decoded and was not.

        Returns:
            The first sample that is lost, and the one after the last. Context before that was decoded
            earlier; silence after it, in a full window, may yet be part of the utterance's end.
        """
        assert self._utterance is not None
        start, end = max(self._settled, window.start), window.end
        if not window.endpoint:
            # never past the speech: the utterance may turn out to have ended there
            end = min(end, max(start + 1, self._utterance.last_voiced))
        self._lost += end - start
        self._settled = end
        if window.endpoint:
            self._remove_utterance()
            self._context_start = None  # not to be decoded again
        else:
            self._start = end
        self._forget(end)
        return start, end

    def _remove_utterance(self) -> int:
        """Remove the first utterance; return the sample from which its audio is kept as context."""
        assert self._utterance is not None and self._utterance.end is not None
        end = self._utterance.end
        self._utterance = None
        self._tracker.remove_first()
        earliest = end - round(self._config.context_seconds * SAMPLE_RATE)
        start = self._start
        if start < earliest:
            start = self._committed.find_end_after(earliest) or end
        self._context_start, self._context_end = start, end
        self._forget(start)
        return start

    def _forget(self, before: int) -> None:
        """Let go of audio before sample ``before``."""
        self._buffer.forget(before)
        self._tracker.voice.forget(before)

    # Accounts

    def _settle_decoded(self, upto: int) -> None:
        """Count the samples of the window before ``upto`` as decoded for good."""
        # context was counted when it was first decoded
        self._decoded += max(0, upto - max(self._start, self._settled))
        self._settled = max(self._settled, upto)

    def settle_silence(self) -> bool:
        """Let go of audio in which nobody speaks; return True where kept context went with it."""
        if self._utterance is not None:
            return False
        upto = self._tracker.speech_start
        self._settled = max(self._settled, upto)
        dropped = self._context_start is not None
        if dropped:
            if (upto - self._context_end) / SAMPLE_RATE <= self._config.context_silence:
                return False
            self._context_start = None
        self._forget(upto)
        return dropped

    def settle_all(self) -> None:
        """Count all audio received as settled: the stream has ended."""
        self._settled = self._buffer.end
