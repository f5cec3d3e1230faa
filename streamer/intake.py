"""What came from the client and was not looked at yet: audio, and requests at their places in it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .buffer import RingBuffer
from .config import SAMPLE_RATE
from .events import Event
from .utterances import UtteranceTracker

__all__ = ["Intake"]

_STEP = SAMPLE_RATE // 10  # as clients send it: with other cuts, what is left over waits

Request = Callable[[], list[Event]]


class Intake:
    """Hands audio to the tracker in steps of 0.1 s of the stream's clock, however it was cut.

    looked at | not looked at yet, with requests in between
              ^ looked            ^ request              ^ received
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
    def looked(self) -> int:
        """Samples that the tracker has seen."""
        return self._tracker.received

    def append(self, samples: NDArray[np.float32]) -> None:
        """Takes samples [n]. Raises BufferFullError, and takes nothing, where they do not fit."""
        self._buffer.append(samples)
        self._tracker.listen(samples)

    def ask(self, request: Request) -> None:
        """Has ``request`` carried out once all audio received so far is looked at."""
        self._requests.append((self.received, request))

    def step(self) -> list[Event] | None:
        """Looks at the next piece, or carries out the request that is due. None: there is neither."""
        place = self.looked
        if not self._requests and place % _STEP == 0 and (quiet := self._tracker.quiet) >= _STEP:
            # many steps at once come to the same: nothing happens in any of them
            return self._tracker.go_on(quiet - quiet % _STEP)
        end = place + _STEP - place % _STEP
        if self._requests:
            at, request = self._requests[0]
            if at == place:
                self._requests.popleft()
                return request()
            end = min(end, at)
        if end > self.received:
            return None  # a piece that is not complete may yet go on
        return self._tracker.go_on(end - place)
