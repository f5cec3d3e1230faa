"""Is somebody speaking? Frame decisions by a detector, and the gate that makes them steady."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from ..config import SAMPLE_RATE

__all__ = [
    "FRAME_SAMPLES",
    "BatchDetector",
    "GateConfig",
    "GateStart",
    "GateStop",
    "SpeechDetector",
    "SpeechGate",
    "WebRtcDetector",
]

FRAME_SAMPLES = SAMPLE_RATE // 50  # 20 ms
_LEVELS = 250  # frames, 5 s


class SpeechDetector(Protocol):
    """Decides frame by frame; keeps state from one call to the next."""

    def is_speech(self, frame: NDArray[np.float32]) -> bool:
        """``frame``: [FRAME_SAMPLES] in -1..1."""
        ...


@runtime_checkable
class BatchDetector(Protocol):
    """A detector that decides on several frames at once as it would on one after the other, but faster."""

    def are_speech(self, frames: NDArray[np.float32]) -> list[bool]:
        """``frames``: [n, FRAME_SAMPLES] in -1..1, in order."""
        ...


class WebRtcDetector:
    """The WebRTC project's detector, behind an energy floor that follows the room.

    The floor is the level of the quietest recent frames; speech must stand out from it, and from
    digital silence. ``aggressiveness`` 0 to 3: higher lets less through.
    """

    def __init__(
        self, aggressiveness: int = 2, *, least_dbfs: float = -62.0, above_floor_db: float = 4.0
    ) -> None:
        self._vad = webrtcvad.Vad(aggressiveness)
        self._least_dbfs = least_dbfs
        self._above_floor_db = above_floor_db
        self._levels: deque[float] = deque()  # of the last frames, oldest first
        self._ordered: list[float] = []  # the same, lowest first

    def is_speech(self, frame: NDArray[np.float32]) -> bool:
        return self.are_speech(frame[np.newaxis])[0]

    def are_speech(self, frames: NDArray[np.float32]) -> list[bool]:
        # plain ufuncs: the methods of the same names take longer to begin than to end
        clipped = np.minimum(np.maximum(frames, -1.0), 1.0)
        pcm = np.multiply(clipped, 32767.0, out=clipped).astype("<i2").tobytes()
        squares = frames.astype(np.float64)
        power = np.add.reduce(np.multiply(squares, squares, out=squares), axis=1)  # [n]
        levels = (10.0 * np.log10(power / FRAME_SAMPLES + 1e-10)).tolist()
        size = FRAME_SAMPLES * 2
        return [
            # always asked: it adapts
            self._stands_out(level, self._vad.is_speech(pcm[at : at + size], SAMPLE_RATE))
            for level, at in zip(levels, range(0, len(pcm), size), strict=True)
        ]

    def _stands_out(self, level: float, voiced: bool) -> bool:
        if len(self._levels) == _LEVELS:
            del self._ordered[bisect_left(self._ordered, self._levels.popleft())]
        self._levels.append(level)
        insort(self._ordered, level)
        if not voiced or level < self._least_dbfs:
            return False
        if len(self._levels) < _LEVELS:
            return True  # the room is not known yet
        return level > self._ordered[_LEVELS // 10] + self._above_floor_db


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """Durations are numbers of 20 ms frames."""

    window: int = 10  # frames looked at for a start
    start_voiced: int = 5  # voiced ones among them that start speech
    hangover: int = 15  # unvoiced frames in a row that stop it

    def __post_init__(self) -> None:
        if not 1 <= self.start_voiced <= self.window:
            raise ValueError("start_voiced must be between 1 and window")
        if self.hangover < 1:
            raise ValueError(f"hangover must be at least 1 frame, not {self.hangover}")


@dataclass(frozen=True, slots=True)
class GateStart:
    sample: int  # where the first voiced frame begins


@dataclass(frozen=True, slots=True)
class GateStop:
    sample: int  # where the last voiced frame ends


class SpeechGate:
    """Turns frame decisions into starts and stops with hysteresis. Chunking does not matter.

    A short click does not start it, a short pause between words does not stop it.
    """

    def __init__(self, detector: SpeechDetector, config: GateConfig | None = None) -> None:
        self._decide = (
            detector.are_speech
            if isinstance(detector, BatchDetector)
            else lambda frames: [detector.is_speech(frame) for frame in frames]
        )
        self._config = config or GateConfig()
        self._pending = np.zeros(0, dtype=np.float32)  # samples of an unfinished frame
        self._decided: deque[bool] = deque()  # frames heard and not passed yet: were they voiced?
        self._position = 0  # absolute sample after the last whole frame
        self._recent: deque[bool] = deque(maxlen=self._config.window)
        self._speaking = False
        self._last_voiced = 0  # sample where the last voiced frame ended
        self._unvoiced = 0  # frames since then

    @property
    def speaking(self) -> bool:
        return self._speaking

    @property
    def last_voiced(self) -> int:
        """Sample where the last voiced frame ended; 0 before the first."""
        return self._last_voiced

    def push(self, samples: NDArray[np.float32]) -> Sequence[GateStart | GateStop]:
        """Takes samples [n] at 16 kHz, in order."""
        self.listen(samples)
        return self.go_on(len(self._decided))

    def listen(self, samples: NDArray[np.float32]) -> None:
        """Takes samples [n] at 16 kHz, in order, and does not pass them yet: ``go_on`` does."""
        pending = np.concatenate((self._pending, samples)) if len(self._pending) else samples
        whole = len(pending) - len(pending) % FRAME_SAMPLES
        if whole:
            frames = pending[:whole].reshape(-1, FRAME_SAMPLES)  # [n] -> [frames, FRAME_SAMPLES]
            self._decided += self._decide(frames)
        self._pending = pending[whole:].copy()

    @property
    def quiet(self) -> int:
        """Frames that were heard and not passed yet, up to the first that is voiced."""
        return next((n for n, voiced in enumerate(self._decided) if voiced), len(self._decided))

    def go_on(self, frames: int) -> Sequence[GateStart | GateStop]:
        """Passes so many frames, of those that were heard."""
        changes: list[GateStart | GateStop] = []
        for _ in range(frames):
            change = self._step(self._decided.popleft())
            if change is not None:
                changes.append(change)
        return changes

    def _step(self, voiced: bool) -> GateStart | GateStop | None:
        self._position += FRAME_SAMPLES
        self._recent.append(voiced)
        if voiced:
            self._unvoiced = 0
        else:
            self._unvoiced += 1
        if self._speaking:
            if voiced:
                self._last_voiced = self._position
            elif self._unvoiced >= self._config.hangover:
                self._speaking = False
                self._recent.clear()
                return GateStop(self._last_voiced)
            return None
        if sum(self._recent) >= self._config.start_voiced:
            self._speaking = True
            self._last_voiced = self._position if voiced else self._last_voiced
            first = next(i for i, was in enumerate(self._recent) if was)
            return GateStart(self._position - (len(self._recent) - first) * FRAME_SAMPLES)
        return None
