"""Utterances on the sample clock, found from the starts and stops of the speech gate."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..config import SAMPLE_RATE, StreamConfig
from ..events import Event, SpeechStarted, SpeechStopped
from .vad import FRAME_SAMPLES, GateStart, SpeechDetector, SpeechGate
from .voice_map import VoiceMap

__all__ = ["Utterance", "UtteranceTracker"]

_POSTROLL_SECONDS = 0.4  # audio kept after the last voiced frame


@dataclass(slots=True)
class Utterance:
    """A stretch of speech to decode. ``end`` is None while it may still go on."""

    start: int
    end: int | None = None
    last_voiced: int = 0  # sample where speech was last heard
    resumed: bool = False  # goes on where a cut ended the one before

    @property
    def waiting(self) -> bool:
        """True while it follows a cut into speech, and nothing was said since."""
        return self.resumed and self.last_voiced <= self.start


class UtteranceTracker:
    """Turns audio into utterances and speech events; knows nothing of decoding.

    silence | preroll | speech .. pause .. speech | postroll | silence
            ^ start                                          ^ end, decided after endpoint_silence

    Audio goes in by ``listen``; ``advance`` moves the tracker's clock over it and finds the events.
    """

    def __init__(self, config: StreamConfig, detector: SpeechDetector) -> None:
        self._gate = SpeechGate(detector)
        self._preroll = round(config.preroll * SAMPLE_RATE)
        self.set_endpoint(config.endpoint_silence)
        self._position = 0
        self._floor = 0  # where the last utterance ended: the next cannot start before
        self._queue: deque[Utterance] = deque()  # oldest first; only the newest may be open

    @property
    def position(self) -> int:
        """Sample that the clock has reached."""
        return self._position

    @property
    def utterances(self) -> tuple[Utterance, ...]:
        """The utterances that were not removed yet, oldest first; only the newest may be open."""
        return tuple(self._queue)

    @property
    def first(self) -> Utterance | None:
        """The oldest of them, once it is sure that there is one: a ``waiting`` one may yet vanish."""
        return self._queue[0] if self._queue and not self._queue[0].waiting else None

    @property
    def voice(self) -> VoiceMap:
        """The voiced stretches of the audio that the clock has passed."""
        return self._gate.voice

    @property
    def speech_start(self) -> int:
        """Sample before which all audio is silence, but for utterances that were removed."""
        if self._queue:
            return self._queue[0].start
        return max(self._floor, self._position - self._preroll - SAMPLE_RATE // 2)

    @property
    def quiet_samples(self) -> int:
        """Samples right ahead of the clock in which nothing can happen: silence, and nobody begins."""
        if self._queue or self._gate.speaking or self._position % FRAME_SAMPLES:
            return 0
        return self._gate.quiet_frames * FRAME_SAMPLES

    def set_endpoint(self, seconds: float) -> None:
        """Let silence of ``seconds`` end an utterance."""
        self._endpoint = round(seconds * SAMPLE_RATE)
        self._postroll = round(min(_POSTROLL_SECONDS, seconds) * SAMPLE_RATE)

    def listen(self, samples: NDArray[np.float32]) -> None:
        """Take the next ``samples``, [S], ahead of the clock: many at once are cheaper, and mean the same."""
        self._gate.listen(samples)

    def advance(self, samples: int) -> list[Event]:
        """Move the clock over the next ``samples``, all of them given to ``listen`` before.

        At most ``endpoint_silence`` at a time keeps endpoints exact.
        """
        events: list[Event] = []
        frames = (self._position + samples) // FRAME_SAMPLES - self._position // FRAME_SAMPLES
        self._position += samples
        for change in self._gate.advance(frames):
            if isinstance(change, GateStart):
                # an endpoint may lie between the last stop and this start, inside one chunk
                self._close_after_silence(change.sample)
                self._open_at(change.sample)
                events.append(SpeechStarted(sample=change.sample))
            else:
                self._queue[-1].last_voiced = change.sample
                events.append(SpeechStopped(sample=change.sample))
        if self._gate.speaking and self._queue:
            self._queue[-1].last_voiced = self._gate.last_voiced
        elif not self._gate.speaking:
            self._close_after_silence(self._position)
        return events

    def cut(self, *, resume: bool) -> None:
        """End the open utterance where the clock stands, in the middle of speech if need be.

        With ``resume``, speech that goes on starts a new utterance there.
        """
        current = self._get_open()
        if current is not None and current.waiting and resume:
            return  # cut already
        if current is not None:
            self._close(self._position)
        if resume and self._gate.speaking:
            self._open_at(self._position)

    def remove_first(self) -> None:
        """Remove the oldest utterance: it is decoded, or given up."""
        self._queue.popleft()

    def _get_open(self) -> Utterance | None:
        return self._queue[-1] if self._queue and self._queue[-1].end is None else None

    def _open_at(self, sample: int) -> None:
        """Begin an utterance for speech from ``sample``, unless one is open."""
        if self._get_open() is None:
            start = max(self._floor, sample - self._preroll, 0)
            self._queue.append(
                Utterance(start=start, last_voiced=sample, resumed=start == sample == self._floor)
            )

    def _close_after_silence(self, until: int) -> None:
        """End the open utterance where it has been silent for long enough at ``until``."""
        current = self._get_open()
        if current is not None and until - current.last_voiced >= self._endpoint:
            self._close(current.last_voiced + self._postroll)

    def _close(self, end: int) -> None:
        utterance = self._queue[-1]
        if utterance.waiting:
            self._queue.pop()  # a cut fell into speech, but nothing was said after it
            return
        utterance.end = end
        self._floor = end
