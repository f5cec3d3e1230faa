"""What came from the client and was not looked at yet: audio, and requests at their places in it.

Which stretch of a stream's audio is decoded next, and what becomes of audio that is decoded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..audio.ring_buffer import RingBuffer, quietest
from ..audio.utterances import Utterance, UtteranceTracker
from ..commands import Request
from ..config import SAMPLE_RATE, StreamConfig
from ..events import Event
from .cadence import Cadence
from .transcript import Transcript

__all__ = ["AudioQueue", "STALL_KEEP_SECONDS", "SessionStatistics", "Window", "WindowScheduler"]

_STEP = SAMPLE_RATE // 10  # as clients send it: with other cuts, what is left over waits


class AudioQueue:
    """Hands audio to the tracker in steps of 0.1 s of the stream's clock, however it was cut.

    looked at | not looked at yet, with requests in between
              ^ position            ^ request              ^ received
    """

    def __init__(self, buffer: RingBuffer, tracker: UtteranceTracker) -> None:
        self._buffer = buffer
        self._tracker = tracker
        self._requests: deque[tuple[int, Request]] = deque()

    @property
    def received(self) -> int:
        """Samples that came from the client."""
        return self._buffer.end

    @property
    def position(self) -> int:
        """Samples that the tracker has seen."""
        return self._tracker.received

    def append(self, samples: NDArray[np.float32]) -> None:
        """Takes samples [n]. Raises BufferFullError, and takes nothing, where they do not fit."""
        self._buffer.append(samples)
        self._tracker.listen(samples)

    def add(self, request: Request) -> None:
        """Queue ``request`` behind all audio received so far."""
        self._requests.append((self.received, request))

    def take_request(self) -> Request | None:
        """Return the oldest request if all audio before it has been looked at, and drop it here."""
        if self._requests and self._requests[0][0] == self.position:
            return self._requests.popleft()[1]
        return None

    def step(self) -> list[Event] | None:
        """Look at the next piece, at most up to the next request. None: there is no whole piece yet."""
        position = self.position
        if not self._requests and position % _STEP == 0 and (quiet := self._tracker.quiet) >= _STEP:
            # many steps at once come to the same: nothing happens in any of them
            return self._tracker.go_on(quiet - quiet % _STEP)
        end = position + _STEP - position % _STEP
        if self._requests:
            end = min(end, self._requests[0][0])
        if end > self.received:
            return None  # a piece that is not complete may yet go on
        return self._tracker.go_on(end - position)


STALL_KEEP_SECONDS = 2.0  # of a full window's end is left uncommitted when it must be cut
_FIRST_UPDATE_SECONDS = 1.0  # of audio in a window before its first decode


class SessionStatistics(NamedTuple):
    """Where every sample received has gone; the last four add up to ``received``."""

    received_samples: int
    decoded_samples: int  # part of a decoded, closed stretch
    silent_samples: int  # gated: no speech in it
    lost_samples: int  # declared lost by a ``Gap``
    pending_samples: int  # not settled yet


@dataclass(frozen=True, slots=True)
class Window:
    """Samples of one job."""

    start: int
    end: int
    endpoint: bool  # the utterance ends here
    cut: bool  # the window is full: it must be shortened now

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / SAMPLE_RATE


class WindowScheduler:
    """The window grows over the first utterance of the tracker, is shortened at its start, and ends
    with the utterance, whose last seconds may be the beginning of the next window.

        settled: decoded, silent or lost | window ......... looked at
                                         ^ start  ^ decoded_to
    """

    def __init__(
        self,
        config: StreamConfig,
        buffer: RingBuffer,
        tracker: UtteranceTracker,
        transcript: Transcript,
        cadence: Cadence,
    ) -> None:
        self._config = config
        self._buffer = buffer
        self._tracker = tracker
        self._transcript = transcript
        self._cadence = cadence
        self._start: int | None = None  # None: no utterance is being decoded
        self._context_start: int | None = None  # audio before the next utterance that may be kept
        self._context_end = 0  # where the last utterance ended
        self._decoded_to = 0  # end of the audio of the last job
        self._first_due = 0  # where the utterance's first update ends: the origin of the grid
        self.fresh = True  # nothing of the utterance is decoded, and no context was kept
        self.settled = 0  # samples before this are decoded, silent or lost
        self.decoded = 0  # samples of closed stretches
        self.lost = 0  # samples declared lost

    @property
    def undecided(self) -> int:
        """Audio from this sample on is not decoded for good."""
        queue = self._tracker.queue
        waits = bool(queue) and not queue[0].waiting
        pending = queue[0].start if waits else self._tracker.received
        return pending if self._start is None else min(pending, self._start)

    # What is due

    def enter(self) -> None:
        """Begins a window for the first utterance, once it is sure that there is one."""
        queue = self._tracker.queue
        # the tracker may still drop one that waits
        if self._start is None and queue and not queue[0].waiting:
            self._start = self._enter(queue[0])

    def due(self, *, again: bool) -> Window | None:
        """The window to decode now. ``again``: even if nothing was said since the last."""
        start = self._start
        if start is None:
            return None
        utterance, looked = self._tracker.queue[0], self._tracker.received
        limit = start + round(self._config.max_window * SAMPLE_RATE)
        if utterance.end is not None and utterance.end <= limit:
            return Window(start, utterance.end, endpoint=True, cut=False)
        if looked >= limit:
            return Window(start, limit, endpoint=False, cut=True)
        # what follows the last voice brings no new words
        end = min(looked, utterance.last_voiced + SAMPLE_RATE // 5)
        if end < self._next_update(start) and not again:
            return None
        return Window(start, end, endpoint=False, cut=False)

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

    def _enter(self, utterance: Utterance) -> int:
        """Begins to decode ``utterance`` -> where its window starts.

        After a short pause the window goes on from what was said before, so that the model hears
        the sentence whole; after a long one it starts afresh.
        """
        self._decoded_to = utterance.start
        self.fresh = True
        start = utterance.start
        silence = (utterance.start - self._context_end) / SAMPLE_RATE
        if self._context_start is not None:
            if silence <= self._config.context_silence:
                start = self._context_start
                self.fresh = False
            else:
                self._transcript.scroll(None)
        if silence > self._config.prompt_reset_silence:
            self._transcript.forget_prompt()  # a new topic, as likely as not
        self._context_start = None
        self._buffer.forget(start)
        first = _FIRST_UPDATE_SECONDS if self.fresh else self._config.update_interval
        self._first_due = utterance.start + round(first * SAMPLE_RATE)
        return start

    # What was decoded

    def answered(self, window: Window) -> None:
        """The job of ``window`` is done, or has failed."""
        self._decoded_to = window.end

    def trim_point(self, window: Window) -> int | None:
        """Where a window that has grown past the soft length is shortened: at a committed word."""
        long = window.end - window.start >= round(self._config.soft_window * SAMPLE_RATE)
        if not (long or self._transcript.crowded):
            return None
        return self._transcript.trim_point(window.start, window.end)

    def cut_point(self, window: Window) -> int:
        """Where a full window is shortened: after all that is committed."""
        boundary = self._transcript.last_boundary()
        if boundary is None or boundary <= window.start:  # nothing was understood
            return window.end - round(STALL_KEEP_SECONDS * SAMPLE_RATE)
        return boundary

    def scroll(self, window: Window, boundary: int) -> None:
        """Moves the window's start to the quietest place near ``boundary``."""
        # never past the speech: the utterance may turn out to have ended there
        last_voiced = self._tracker.queue[0].last_voiced
        boundary = min(boundary, max(window.start + 1, last_voiced - SAMPLE_RATE // 10))
        boundary = self._quietest(boundary, window)
        self._transcript.scroll(boundary)
        self._account(boundary)
        self._start = boundary
        self._buffer.forget(boundary)

    def _quietest(self, sample: int, window: Window) -> int:
        """The quietest place within 0.1 s of ``sample``: a cut there costs no sound."""
        low = max(window.start + SAMPLE_RATE // 50, sample - SAMPLE_RATE // 10)
        high = min(window.end, sample + SAMPLE_RATE // 10)
        if high <= low:
            return max(window.start, min(sample, window.end))
        return low + quietest(self._buffer.view(low, high))

    def leave(self, window: Window) -> None:
        """The first utterance is decoded for good; its last seconds stay as context for the next."""
        self._account(window.end)
        done = self._tracker.queue.popleft()
        assert done.end is not None and self._start is not None
        earliest = done.end - round(self._config.context_seconds * SAMPLE_RATE)
        start = self._start
        if start < earliest:
            start = self._transcript.boundary_after(earliest) or done.end
        self._transcript.scroll(start)
        self._context_start, self._context_end = start, done.end
        self._start = None
        self._buffer.forget(start)

    def lose(self, window: Window) -> int:
        """A window that had to be decoded was not -> from where on its audio is lost."""
        lost_from = max(self.settled, window.start)  # context before it was decoded earlier
        self.lost += window.end - lost_from
        self.settled = window.end
        if window.endpoint:
            self.leave(window)
            self._context_start = None  # not to be decoded again
        else:
            self._start = window.end
        self._transcript.scroll(None)
        self._buffer.forget(window.end)
        return lost_from

    # Accounts

    def statistics(self, received: int) -> SessionStatistics:
        silent = self.settled - self.decoded - self.lost
        return SessionStatistics(received, self.decoded, silent, self.lost, received - self.settled)

    def _account(self, upto: int) -> None:
        """Samples up to ``upto`` of the window are decoded for good."""
        start = self._start if self._start is not None else self.settled
        # context was counted when it was first decoded
        self.decoded += max(0, upto - max(start, self.settled))
        self.settled = max(self.settled, upto)

    def forget_silence(self) -> None:
        """Lets go of audio in which nobody speaks."""
        if self._start is not None:
            return
        queue = self._tracker.queue
        upto = queue[0].start if queue else self._tracker.silence_start
        self.settled = max(self.settled, upto)
        if self._context_start is not None:
            if (upto - self._context_end) / SAMPLE_RATE <= self._config.context_silence:
                return
            self._transcript.scroll(None)
            self._context_start = None
        self._buffer.forget(upto)
