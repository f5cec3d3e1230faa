"""Where utterances begin and end on the sample clock, from the gate's starts and stops."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config import SAMPLE_RATE, StreamConfig
from ..events import Event, SpeechStarted, SpeechStopped
from .vad import FRAME_SAMPLES, GateStart, SpeechDetector, SpeechGate

__all__ = ["Utterance", "UtteranceTracker"]

_TAIL_SECONDS = 0.4  # audio kept after the last voiced frame


@dataclass(slots=True)
class Utterance:
    """A stretch of speech to decode. ``end`` is None while it may still go on."""

    start: int
    end: int | None = None
    last_voiced: int = 0  # sample where speech was last heard
    resumed: bool = False  # goes on where a cut ended the one before

    @property
    def waiting(self) -> bool:
        """Whether it follows a cut into speech, and nothing was said since."""
        return self.resumed and self.last_voiced <= self.start


class UtteranceTracker:
    """Turns audio into utterances and speech events; knows nothing of decoding.

    silence | pre-roll | speech .. pause .. speech | tail | silence
            ^ start                                       ^ end, decided after endpoint_silence
    """

    def __init__(self, config: StreamConfig, detector: SpeechDetector) -> None:
        self._gate = SpeechGate(detector)
        self._preroll = round(config.preroll * SAMPLE_RATE)
        self.set_endpoint(config.endpoint_silence)
        self._received = 0
        self._floor = 0  # where the last utterance ended: the next cannot start before
        self.queue: deque[Utterance] = deque()  # oldest first; only the newest may be open

    @property
    def received(self) -> int:
        return self._received

    @property
    def speaking(self) -> bool:
        return self._gate.speaking

    @property
    def silence_start(self) -> int:
        """Audio before this sample, outside the queue, will never be part of an utterance."""
        return max(self._floor, self._received - self._preroll - SAMPLE_RATE // 2)

    def set_endpoint(self, seconds: float) -> None:
        """So much silence ends an utterance."""
        self._endpoint = round(seconds * SAMPLE_RATE)
        self._tail = round(min(_TAIL_SECONDS, seconds) * SAMPLE_RATE)

    def push(self, samples: NDArray[np.float32]) -> list[Event]:
        """Takes samples [n]; at most ``endpoint_silence`` at a time keeps endpoints exact."""
        self.listen(samples)
        return self.go_on(len(samples))

    def listen(self, samples: NDArray[np.float32]) -> None:
        """Takes samples [n], ahead of ``go_on``: many at once are cheaper, and mean the same."""
        self._gate.listen(samples)

    @property
    def quiet(self) -> int:
        """Samples that were heard and not passed yet, in which nothing can happen: it is silent already,
        and nobody begins to speak."""
        if self.queue or self._gate.speaking or self._received % FRAME_SAMPLES:
            return 0
        return self._gate.quiet * FRAME_SAMPLES

    def go_on(self, samples: int) -> list[Event]:
        """Passes so many samples, of those that were heard."""
        events: list[Event] = []
        frames = (self._received + samples) // FRAME_SAMPLES - self._received // FRAME_SAMPLES
        self._received += samples
        for change in self._gate.go_on(frames):
            if isinstance(change, GateStart):
                # an endpoint may lie between the last stop and this start, inside one chunk
                self._close_if_silent(change.sample)
                self._speech_from(change.sample)
                events.append(SpeechStarted(sample=change.sample))
            else:
                self.queue[-1].last_voiced = change.sample
                events.append(SpeechStopped(sample=change.sample))
        if self._gate.speaking and self.queue:
            self.queue[-1].last_voiced = self._gate.last_voiced
        elif not self._gate.speaking:
            self._close_if_silent(self._received)
        return events

    def cut(self, *, resume: bool) -> None:
        """Ends the open utterance at the last sample received, in the middle of speech if need be.

        With ``resume``, speech that goes on starts a new utterance there.
        """
        current = self._open()
        if current is not None and current.waiting and resume:
            return  # cut already
        if current is not None:
            self._close(self._received)
        if resume and self._gate.speaking:
            self._speech_from(self._received)

    def _open(self) -> Utterance | None:
        return self.queue[-1] if self.queue and self.queue[-1].end is None else None

    def _speech_from(self, sample: int) -> None:
        if self._open() is None:
            start = max(self._floor, sample - self._preroll, 0)
            self.queue.append(
                Utterance(start=start, last_voiced=sample, resumed=start == sample == self._floor)
            )

    def _close_if_silent(self, until: int) -> None:
        current = self._open()
        if current is not None and until - current.last_voiced >= self._endpoint:
            self._close(current.last_voiced + self._tail)

    def _close(self, end: int) -> None:
        utterance = self.queue[-1]
        if utterance.waiting:
            self.queue.pop()  # a cut fell into speech, but nothing was said after it
            return
        utterance.end = end
        self._floor = end
