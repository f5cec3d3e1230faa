"""Are raw samples of the kind they are said to be? Told from the bytes alone. Loads no torch.

Two whole numbers of 16 bits that are read as one float give half of the time what no recording holds: the
upper one becomes sign and exponent, so small negative levels become huge, or not a number. The other way
round, of each float the upper half is a whole number in two narrow bands, one for each sign.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["SampleCheck"]

_WINDOW = 8_000  # samples other than zero that are judged together
_MOST_LEVEL = 8.0  # of a float: +18 dB over full scale
_ABSURD_SHARE = 0.01
_WHOLE_LEVEL = 70_000.0  # floats up to here may be whole numbers of 16 bits that nobody scaled
_LEAST_LEVEL = 2.0**-20  # of floats that are sound
_FLOAT_SHARE = 0.8  # of pairs that make floats in this range; 8 % of noise do
_SIGN_SHARE = 0.05  # of these, of either sign
_WHOLE_WINDOWS = 20  # of whole numbers are looked at; an encoding does not change

_NO_FLOATS = "samples do not look like f32le: is the encoding s16le?"
_UNSCALED = "samples of f32le lie far outside -1..1 and are clipped: divide them by 32768"
_NO_WHOLE = "samples do not look like s16le: is the encoding f32le?"


class SampleCheck:
    """Looks at the samples of one stream, cut anywhere, and doubts at most once.

    Args:
        encoding: ``f32le`` or ``s16le``; others are never doubted.
    """

    def __init__(self, encoding: str) -> None:
        self._floats = encoding == "f32le"
        self._active = encoding in ("f32le", "s16le")
        self._half = np.zeros(0, np.int16)  # the first of a pair
        self._windows = 0
        self._held: list[NDArray[np.float32]] = []
        self._count = 0

    def look(self, samples: NDArray[Any]) -> str | None:
        """Take samples [n] of the declared type, channels interleaved; what they look like, if not that."""
        if not self._active:
            return None
        floats = samples.astype(np.float32, copy=False) if self._floats else self._paired(samples)
        heard = floats[floats != 0]
        self._held.append(heard)
        self._count += len(heard)
        if self._count < _WINDOW:
            return None
        window = np.concatenate(self._held)
        self._held, self._count = [], 0
        doubt = _doubt_floats(window) if self._floats else _doubt_whole(window)
        self._windows += 1
        self._active = doubt is None and (self._floats or self._windows < _WHOLE_WINDOWS)
        return doubt

    def _paired(self, samples: NDArray[np.int16]) -> NDArray[np.float32]:
        """[n] of 16 bits as the floats they would be, [n / 2]."""
        joined = np.concatenate((self._half, samples.astype("<i2", copy=False)))
        whole = len(joined) - len(joined) % 2
        self._half = joined[whole:].copy()
        return joined[:whole].view("<f4")


def _doubt_floats(window: NDArray[np.float32]) -> str | None:
    """``window`` [n] has no zeros."""
    with np.errstate(invalid="ignore"):
        level = np.abs(window)
        absurd = ~(level <= _MOST_LEVEL)  # what is not a number is neither
        if absurd.mean() <= _ABSURD_SHARE:
            return None
        whole = bool((level <= _WHOLE_LEVEL).all()) and float(level.min()) > _LEAST_LEVEL
    return _UNSCALED if whole else _NO_FLOATS


def _doubt_whole(window: NDArray[np.float32]) -> str | None:
    with np.errstate(invalid="ignore"):
        level = np.abs(window)
        sound = (level >= _LEAST_LEVEL) & (level <= 1.0)
    if sound.mean() < _FLOAT_SHARE:
        return None
    below = float((window[sound] < 0).mean())
    return _NO_WHOLE if _SIGN_SHARE <= below <= 1 - _SIGN_SHARE else None
