"""Where to cut a long recording so that its windows can be decoded side by side: at silences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import webrtcvad
from numpy.typing import NDArray

from .audio import HOP_LENGTH, SAMPLE_RATE
from .segments import Span

__all__ = ["Chunk", "plan_windows", "speech_flags"]

_FRAME = 480  # samples of one decision of the detector: 30 ms
_MEL_FRAMES = _FRAME // HOP_LENGTH  # of one detector frame: 3
_LONGEST = 1000  # detector frames of a window: 30 s
_PADDING = 10  # detector frames kept before speech begins and after it ends: 0.3 s
_SEARCH = 167  # detector frames before the limit where a cut without silence is sought: 5 s
_AGGRESSIVENESS = 1  # 0..3; a missed word costs more than a silence decoded

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    span: Span
    speech_end: int  # mel frame at which the last speech in it ends


def plan_windows(samples: NDArray[np.float32], clips: Sequence[tuple[int, int]]) -> list[Chunk]:
    """Windows of at most 30 s that hold all speech of the ``clips`` (mel frames, from and to).

    ``samples`` are 16 kHz in -1..1. A window begins shortly before speech, and ends in the longest
    silence of its second half, or at the quietest moment of its last 5 s where there is none.
    """
    chunks: list[Chunk] = []
    total = len(samples) // HOP_LENGTH
    for begin, end in clips:
        end = min(end, total)
        clip = samples[begin * HOP_LENGTH : end * HOP_LENGTH]
        flags, loudness = speech_flags(clip), _loudness(clip)
        for first, last in _windows(flags, loudness):
            seek = begin + first * _MEL_FRAMES
            frames = min(begin + last * _MEL_FRAMES, end) - seek
            spoken = first + int(np.flatnonzero(flags[first:last])[-1]) + 1
            speech_end = begin + spoken * _MEL_FRAMES
            chunks.append(Chunk(span=Span(seek=seek, frames=frames), speech_end=speech_end))
    return chunks


def speech_flags(samples: NDArray[np.float32]) -> Flags:
    """Whether each 30 ms of 16 kHz ``samples`` holds speech; the last frame is filled with zeros."""
    detector = webrtcvad.Vad(_AGGRESSIVENESS)
    frames = (_framed(samples).clip(-1, 1) * 32767).astype(np.int16)
    return np.array([detector.is_speech(frame.tobytes(), SAMPLE_RATE) for frame in frames], bool)


def _framed(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.pad(samples, (0, -len(samples) % _FRAME)).reshape(-1, _FRAME)


def _loudness(samples: NDArray[np.float32]) -> NDArray[np.float32]:
    power: NDArray[np.float32] = np.square(_framed(samples)).mean(axis=1)
    return power


def _windows(flags: Flags, loudness: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Detector frames, from and to, of every window."""
    speech = np.flatnonzero(flags)
    windows: list[tuple[int, int]] = []
    at = 0
    while len(ahead := speech[speech >= at]):
        begin = max(at, int(ahead[0]) - _PADDING)
        end = min(int(ahead[-1]) + 1 + _PADDING, len(flags))
        if end - begin > _LONGEST:
            end = _cut(flags, loudness, begin + _LONGEST // 2, begin + _LONGEST)
        windows.append((begin, end))
        at = end
    return windows


def _cut(flags: Flags, loudness: NDArray[np.float32], low: int, high: int) -> int:
    """The frame between ``low`` and ``high`` at which to cut."""
    edges = np.flatnonzero(np.diff(flags[low:high], prepend=True, append=True))
    starts, ends = edges[::2], edges[1::2]  # of the silences
    if not len(starts):
        low = high - _SEARCH
        return low + int(loudness[low:high].argmin())
    longest = int((ends - starts).argmax())
    return low + int(starts[longest] + ends[longest]) // 2
