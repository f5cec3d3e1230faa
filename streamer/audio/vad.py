"""Voice activity: detectors that judge 20 ms frames, and the gate that makes their answers steady.

``webrtc``
    the detector of the WebRTC project, behind an energy floor that follows the room.
``silero``
    a small network, stronger where noise is loud. Its package (MIT) is the extra ``silero``; only the
    weights in it are used. It needs torch, which is imported when the first such detector is made.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, assert_never, runtime_checkable

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from ..config import SAMPLE_RATE, DetectorName
from ..errors import DetectorError
from .voice_map import VoiceMap

__all__ = [
    "FRAME_SAMPLES",
    "BatchDetector",
    "GateConfig",
    "GateStart",
    "GateStop",
    "SileroDetector",
    "SpeechDetector",
    "SpeechGate",
    "WebRtcDetector",
    "make_detector",
]

FRAME_SAMPLES = SAMPLE_RATE // 50  # 20 ms

_LEVELS = 250  # frames, 5 s

_SILERO_BLOCK = 512  # samples that the network judges at a time, 32 ms
_SILERO_CONTEXT = 64  # samples before them that it sees too
_SILERO_FALL = 0.15  # below the threshold by which the chance of speech must fall to end it


class SpeechDetector(Protocol):
    """Judge of one stream's frames, given in order; it keeps state from one call to the next."""

    def is_speech(self, frame: NDArray[np.float32]) -> bool:
        """Judge the next ``frame``, [FRAME_SAMPLES] in -1..1."""
        ...


@runtime_checkable
class BatchDetector(Protocol):
    """A detector that judges several frames in one call, faster, as it would one after the other."""

    def are_speech(self, frames: NDArray[np.float32]) -> list[bool]:
        """Judge the next ``frames``, [F, FRAME_SAMPLES] in -1..1, in order."""
        ...


def make_detector(name: DetectorName) -> SpeechDetector:
    """Return a fresh detector for one stream. Raises DetectorError where its package is missing."""
    match name:
        case "webrtc":
            return WebRtcDetector()
        case "silero":
            return SileroDetector()
        case _:
            assert_never(name)


class WebRtcDetector:
    """The WebRTC project's detector, behind an energy floor that follows the room.

    The floor is the level of the quietest recent frames; speech must stand out from it, and from
    digital silence.

    Args:
        aggressiveness: 0 to 3; higher lets less through.
        least_dbfs: no quieter frame is speech.
        above_floor_db: by which the level of speech exceeds the floor.
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
        """Judge the next ``frame``, [FRAME_SAMPLES] in -1..1."""
        return self.are_speech(frame[np.newaxis])[0]

    def are_speech(self, frames: NDArray[np.float32]) -> list[bool]:
        """Judge the next ``frames``, [F, FRAME_SAMPLES] in -1..1, in order."""
        # plain ufuncs: the methods of the same names take longer to begin than to end
        clipped = np.minimum(np.maximum(frames, -1.0), 1.0)
        pcm = np.multiply(clipped, 32767.0, out=clipped).astype("<i2").tobytes()
        squares = frames.astype(np.float64)
        power = np.add.reduce(np.multiply(squares, squares, out=squares), axis=1)  # [F]
        levels = (10.0 * np.log10(power / FRAME_SAMPLES + 1e-10)).tolist()
        size = FRAME_SAMPLES * 2
        return [
            # always asked: it adapts
            self._stands_out(level, self._vad.is_speech(pcm[at : at + size], SAMPLE_RATE))
            for level, at in zip(levels, range(0, len(pcm), size), strict=True)
        ]

    def _stands_out(self, level: float, voiced: bool) -> bool:
        """Take a frame's ``level``; say whether the frame is ``voiced`` and above the floor."""
        if len(self._levels) == _LEVELS:
            del self._ordered[bisect_left(self._ordered, self._levels.popleft())]
        self._levels.append(level)
        insort(self._ordered, level)
        if not voiced or level < self._least_dbfs:
            return False
        if len(self._levels) < _LEVELS:
            return True  # the room is not known yet
        return level > self._ordered[_LEVELS // 10] + self._above_floor_db


# (samples [S], state) -> the chance that somebody speaks in them, and the next state
_Network = Callable[[NDArray[np.float32], Any], tuple[float, Any]]


def _find_silero() -> Path:
    """Return the file of the network. Raises DetectorError where the package is missing."""
    spec = find_spec("silero_vad")  # not imported: that would change PyTorch's threads
    if spec is None or spec.origin is None:
        raise DetectorError(
            "the silero detector is not installed: pip install 'whisper-stream[silero]'"
        )
    weights = Path(spec.origin).parent / "data" / "silero_vad.jit"
    if not weights.is_file():
        raise DetectorError(f"{weights} is missing: install silero-vad again")
    return weights


@cache
def _load_silero(weights: Path) -> tuple[_Network, Any]:
    """Load the network, which all streams share, and the state that a stream begins with."""
    import torch

    load: Any = torch.jit.load  # has no types
    with warnings.catch_warnings():
        # deprecated, but the only form in which the package has the network; constraints.txt pins torch
        warnings.simplefilter("ignore", DeprecationWarning)
        network = load(str(weights), map_location="cpu").eval()._model

    @torch.inference_mode()
    def judge(samples: NDArray[np.float32], state: Any) -> tuple[float, Any]:
        chance, state = network(torch.from_numpy(samples)[None], state)
        return float(chance), state

    return judge, torch.zeros(2, 1, 128)


class SileroDetector:
    """The Silero network: speech once its chance reaches ``threshold``, until it is well below.

    Raises:
        DetectorError: its package is missing.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        self._network, self._state = _load_silero(_find_silero())
        self._threshold = threshold
        self._context = np.zeros(_SILERO_CONTEXT, np.float32)
        self._pending = np.zeros(0, np.float32)
        self._speech = False

    def is_speech(self, frame: NDArray[np.float32]) -> bool:
        """Judge the next ``frame``, [FRAME_SAMPLES] in -1..1, by the last whole block of 32 ms."""
        self._pending = np.concatenate((self._pending, frame))
        while len(self._pending) >= _SILERO_BLOCK:
            block = self._pending[:_SILERO_BLOCK]
            self._pending = self._pending[_SILERO_BLOCK:]
            heard = np.concatenate((self._context, block))
            self._context = block[-_SILERO_CONTEXT:]
            chance, self._state = self._network(heard, self._state)
            self._speech = chance >= self._threshold - (_SILERO_FALL if self._speech else 0.0)
        return self._speech


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig:
    """Hysteresis of a SpeechGate, in frames of 20 ms."""

    window: int = 10  # newest frames looked at for a start
    start_voiced: int = 5  # voiced ones among them that start speech
    hangover: int = 15  # unvoiced frames in a row that stop it

    def __post_init__(self) -> None:
        if not 1 <= self.start_voiced <= self.window:
            raise ValueError("start_voiced must be between 1 and window")
        if self.hangover < 1:
            raise ValueError(f"hangover must be at least 1 frame, not {self.hangover}")


@dataclass(frozen=True, slots=True)
class GateStart:
    """Speech has started: ``sample`` is where its first voiced frame begins."""

    sample: int


@dataclass(frozen=True, slots=True)
class GateStop:
    """Speech has stopped: ``sample`` is where its last voiced frame ends."""

    sample: int


class SpeechGate:
    """Turns the detector's answers into starts and stops with hysteresis.

    A short click does not start it, a short pause between words does not stop it. Audio goes in by
    ``listen``, in pieces of any size, and is judged at once; ``advance`` moves the gate's clock over it.
    """

    def __init__(self, detector: SpeechDetector, config: GateConfig | None = None) -> None:
        self._judge = (
            detector.are_speech
            if isinstance(detector, BatchDetector)
            else lambda frames: [detector.is_speech(frame) for frame in frames]
        )
        self._config = config or GateConfig()
        self._pending = np.zeros(0, dtype=np.float32)  # samples of an unfinished frame
        self._ahead: deque[bool] = deque()  # frames ahead of the clock: is each voiced?
        self._position = 0  # sample where the clock stands, after a whole frame
        self._recent: deque[bool] = deque(maxlen=self._config.window)
        self._speaking = False
        self._last_voiced = 0
        self._unvoiced = 0  # frames since then
        self.voice = VoiceMap()

    @property
    def speaking(self) -> bool:
        """True from a start to its stop."""
        return self._speaking

    @property
    def last_voiced(self) -> int:
        """Sample where the last voiced frame ended; 0 before the first."""
        return self._last_voiced

    @property
    def quiet_frames(self) -> int:
        """Unvoiced frames right ahead of the clock."""
        return next((n for n, voiced in enumerate(self._ahead) if voiced), len(self._ahead))

    def listen(self, samples: NDArray[np.float32]) -> None:
        """Take the next ``samples``, [S] at 16 kHz, ahead of the clock."""
        pending = np.concatenate((self._pending, samples)) if len(self._pending) else samples
        whole = len(pending) - len(pending) % FRAME_SAMPLES
        if whole:
            frames = pending[:whole].reshape(-1, FRAME_SAMPLES)  # [S] -> [F, FRAME_SAMPLES]
            self._ahead += self._judge(frames)
        self._pending = pending[whole:].copy()

    def advance(self, frames: int) -> Sequence[GateStart | GateStop]:
        """Move the clock over the next ``frames``, all of them given to ``listen`` before."""
        changes: list[GateStart | GateStop] = []
        for _ in range(frames):
            change = self._step(self._ahead.popleft())
            if change is not None:
                changes.append(change)
        return changes

    def _step(self, voiced: bool) -> GateStart | GateStop | None:
        """Move the clock over one frame."""
        self._position += FRAME_SAMPLES
        self._recent.append(voiced)
        if voiced:
            self._unvoiced = 0
            self.voice.add(self._position - FRAME_SAMPLES, self._position)
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
