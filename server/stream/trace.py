"""Traces of what streams heard and said lately, for the daemon's ``/debug`` page. Off unless ``--debug`` is given.

In memory only and bounded: the last two minutes of each of the last few streams, as a waveform and
words, never the audio itself.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ...streamer.config import SAMPLE_RATE
from ..protocol import messages as wire
from ..protocol.word_times import StreamTimes, TimedWord, delays

__all__ = ["PEAKS_PER_SECOND", "Debug", "Trace"]

PEAKS_PER_SECOND = 100
KEPT_SECONDS = 120
_MOST_STREAMS = 16
_MOST_WORDS = 2_000
_STEP = SAMPLE_RATE // PEAKS_PER_SECOND


class Trace:
    """One stream.

    Args:
        clock: seconds; that of ``Debug``.

    Attributes:
        touched: when the stream last heard or said something.
        revision: grows with every change.
    """

    def __init__(self, stream_id: str, model: str, clock: Callable[[], float]) -> None:
        self.id = stream_id
        self.state = "open"
        self.touched = clock()
        self._clock = clock
        self.revision = 0
        self._seconds_in = 0.0  # audio that the stream has received
        self._model = model
        self._peaks: deque[int] = deque(maxlen=KEPT_SECONDS * PEAKS_PER_SECOND)
        self._heard = 0  # samples of whole peaks, from the stream's beginning
        self._rest: NDArray[np.float32] = np.zeros(0, np.float32)
        self._times = StreamTimes(_MOST_WORDS, KEPT_SECONDS)
        self._lag = 0.0

    def on_audio(self, samples: NDArray[np.float32], seconds_in: float) -> None:
        """Take samples [n] at 16 kHz, in order, cut anywhere; with them, ``seconds_in`` were received."""
        self._touch(seconds_in)
        if not self._heard and not self._rest.size:
            # a restored stream was not heard from its start
            self._heard = max(0, round(seconds_in * SAMPLE_RATE) - samples.size)
        audio = np.concatenate((self._rest, samples))
        whole = audio.size // _STEP * _STEP
        loudest = np.abs(audio[:whole]).reshape(-1, _STEP).max(axis=1, initial=0.0)
        self._peaks.extend(np.minimum(127, loudest * 127).astype(int).tolist())
        self._rest = audio[whole:].copy()
        self._heard += whole

    def on_message(self, message: wire.ServerMessage, seconds_in: float) -> None:
        """Take what the stream said when ``seconds_in`` of audio had been received."""
        self._touch(seconds_in)
        self._times.on_message(message, seconds_in)
        match message:
            case wire.Lag():
                self._lag = message.behind
            case wire.Done():
                self.state = "done"
            case wire.Error(fatal=True):
                self.state = "failed"

    def snapshot(self) -> dict[str, Any]:
        """The last two minutes, as the page draws them; times in seconds of the stream."""
        now = self._seconds_in
        until = self._heard / SAMPLE_RATE
        first = until - len(self._peaks) / PEAKS_PER_SECOND
        words = [word for word in self._times.words if word.end >= first]
        tail = self._times.unstable(now)
        spans = self._times.speech(now)
        return {
            "id": self.id,
            "revision": self.revision,
            "from": round(first, 3),
            "duration": round(now, 3),
            "peaksPerSecond": PEAKS_PER_SECOND,
            "peaks": list(self._peaks),
            "speech": [
                {"start": max(start, first), "end": end} for start, end in spans if end > first
            ],
            "words": msgspec.to_builtins([*words, *tail]),
            "summary": self._summary(now, words),
        }

    def _touch(self, seconds_in: float) -> None:
        self._seconds_in = seconds_in
        self.revision += 1
        self.touched = self._clock()

    def _summary(self, now: float, words: list[TimedWord]) -> dict[str, str]:
        summary = {"State": self.state, "Length": f"{now:.1f} s", "Model": self._model}
        if self._times.language:
            summary["Language"] = self._times.language
        if self._lag > 0:
            summary["Behind"] = f"{self._lag:.1f} s"
        return summary | {"Words": str(len(words))} | delays(words)


class Debug:
    """The latest streams, forgotten ``keep_seconds`` after they last changed.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, model: str, keep_seconds: float, clock: Callable[[], float]) -> None:
        self._model = model
        self._keep_seconds = keep_seconds
        self._clock = clock
        self._traces: OrderedDict[str, Trace] = OrderedDict()  # oldest first

    def trace(self, stream_id: str) -> Trace:
        """Begin to follow a stream; the oldest one is forgotten when there are too many."""
        trace = Trace(stream_id, self._model, self._clock)
        self._traces[stream_id] = trace
        while len(self._traces) > _MOST_STREAMS:
            self._traces.popitem(last=False)
        self.sweep()
        return trace

    def forget(self, stream_id: str) -> None:
        """Drop the trace of a stream."""
        self._traces.pop(stream_id, None)

    def streams(self) -> list[dict[str, str]]:
        """The newest first: ``id`` and ``state``."""
        self.sweep()
        newest = reversed(list(self._traces.values()))
        return [{"id": trace.id, "state": trace.state} for trace in newest]

    def find(self, stream_id: str) -> Trace | None:
        """Return the trace of a stream; None: there is none, or it is too old."""
        self.sweep()
        return self._traces.get(stream_id)

    def sweep(self) -> None:
        """Forget what has not changed for long."""
        oldest = self._clock() - self._keep_seconds
        for trace in list(self._traces.values()):
            if trace.touched < oldest:
                self.forget(trace.id)
