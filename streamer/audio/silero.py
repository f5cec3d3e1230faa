"""The Silero speech detector: a small network, stronger than WebRTC's where noise is loud.

Its package (MIT) is the extra ``silero``; only the weights in it are used.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import DetectorError

__all__ = ["SileroDetector"]

_BLOCK = 512  # samples that the network judges at a time, 32 ms
_CONTEXT = 64  # samples before them that it sees too
_FALL = 0.15  # below the threshold by which the chance of speech must fall to end it


@cache
def _network() -> Any:
    """The network, shared by all streams: the state of each is handed in.

    Raises DetectorError where the package is missing.
    """
    spec = find_spec("silero_vad")  # not imported: that would change PyTorch's threads
    if spec is None or spec.origin is None:
        raise DetectorError(
            "the silero detector is not installed: pip install 'whisper-stream[silero]'"
        )
    weights = Path(spec.origin).parent / "data" / "silero_vad.jit"
    if not weights.is_file():
        raise DetectorError(f"{weights} is missing: install silero-vad again")
    load: Any = torch.jit.load  # has no types
    with warnings.catch_warnings():
        # deprecated, but the only form in which the package has the network; constraints.txt pins torch
        warnings.simplefilter("ignore", DeprecationWarning)
        return load(str(weights), map_location="cpu").eval()._model


class SileroDetector:
    """Speech once its chance is above ``threshold``, until it is well below."""

    def __init__(self, threshold: float = 0.5) -> None:
        self._network = _network()
        self._threshold = threshold
        self._state = torch.zeros(2, 1, 128)
        self._context = np.zeros(_CONTEXT, np.float32)
        self._pending = np.zeros(0, np.float32)
        self._speech = False

    def is_speech(self, frame: NDArray[np.float32]) -> bool:
        self._pending = np.concatenate((self._pending, frame))
        while len(self._pending) >= _BLOCK:
            block, self._pending = self._pending[:_BLOCK], self._pending[_BLOCK:]
            chance = self._judge(block)
            self._speech = chance >= self._threshold - (_FALL if self._speech else 0.0)
        return self._speech

    @torch.inference_mode()
    def _judge(self, block: NDArray[np.float32]) -> float:
        heard = np.concatenate((self._context, block))
        self._context = block[-_CONTEXT:]
        chance, self._state = self._network(torch.from_numpy(heard)[None], self._state)
        return float(chance)
