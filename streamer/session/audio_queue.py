"""The queue between the client and the session: audio, and requests at their places in it."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from ..audio.ring_buffer import RingBuffer
from ..audio.utterances import UtteranceTracker
from ..commands import Request
from ..config import SAMPLE_RATE
from ..events import Event

__all__ = ["AudioQueue"]

_STEP = SAMPLE_RATE // 10  # as clients send it: with other cuts, what is left over waits


class AudioQueue:
    """Moves the stream's clock over the audio received, in steps of 0.1 s, however it was cut.

    looked at | not looked at yet, with requests in between
              ^ position          ^ request              ^ received

    It appends to the buffer and advances the tracker; nothing else does.
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
        """Sample that the stream's clock has reached."""
        return self._tracker.position

    def append(self, samples: NDArray[np.float32]) -> None:
        """Take ``samples``, [S]. Raises BufferFullError, and takes nothing, where they do not fit."""
        self._buffer.append(samples)
        self._tracker.listen(samples)

    def add(self, request: Request) -> None:
        """Queue ``request`` behind all audio received so far."""
        self._requests.append((self.received, request))

    def take_request(self) -> Request | None:
        """Remove and return the oldest request, where the clock has reached its place."""
        if self._requests and self._requests[0][0] == self.position:
            return self._requests.popleft()[1]
        return None

    def step(self) -> list[Event] | None:
        """Move the clock on by one step, at most to the next request; None where no whole step is there."""
        position = self.position
        if not self._requests and position % _STEP == 0:
            quiet = self._tracker.quiet_samples
            if quiet >= _STEP:
                # many steps at once come to the same: nothing happens in any of them
                return self._tracker.advance(quiet - quiet % _STEP)
        end = position + _STEP - position % _STEP
        if self._requests:
            end = min(end, self._requests[0][0])
        if end > self.received:
            return None  # a piece that is not complete may yet go on
        return self._tracker.advance(end - position)
