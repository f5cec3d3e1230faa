"""Checks of a client's audio: levels, offset, and signs in the spectrum of a wrong format."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...streamer.config import SAMPLE_RATE
from ..protocol.errors import WarningCode

__all__ = ["AudioMonitor", "Suspicion"]

_WINDOW = 4 * SAMPLE_RATE  # samples looked at together
_QUIET_WINDOWS = 3  # in a row
_NEW_WINDOWS = 15  # of which each one's spectrum is looked at; what is declared wrongly shows early
_SELDOM = 4  # later, one window in four: spectra cost more than all else here
_QUIET_PEAK = 0.002  # -54 dB of full scale
_CLIPPED = 0.999
_CLIPPED_SHARE = 0.005  # of the samples
_OFFSET = 0.05
_FRAME = 512
_LOW_HERTZ = 1_300.0  # speech played three times too slowly has hardly anything above
_LOW_SHARE = 1e-3  # of the power
_NOISE_RMS, _NOISE_FLATNESS = 0.15, 0.5  # loud and white: bytes taken for the wrong kind of sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The text of a ``warning``."""

    code: WarningCode
    message: str


class AudioMonitor:
    """A monitor of all audio of a stream, in windows of four seconds; reports each fault once."""

    def __init__(self) -> None:
        self._held: list[NDArray[np.float32]] = []
        self._count = 0  # samples held
        self._quiet = 0  # windows in a row
        self._windows = 0  # that were loud enough for a spectrum
        self._said: set[WarningCode] = set()

    def listen(self, samples: NDArray[np.float32]) -> list[Suspicion]:
        """Take samples [n] at 16 kHz, in order, cut anywhere."""
        self._held.append(samples)
        self._count += len(samples)
        if self._count < _WINDOW:
            return []
        audio = np.concatenate(self._held)
        found: list[Suspicion] = []
        whole = len(audio) - len(audio) % _WINDOW
        for at in range(0, whole, _WINDOW):
            found += self._judge(audio[at : at + _WINDOW])
        self._held = [audio[whole:].copy()]
        self._count = len(audio) - whole
        new = [each for each in found if each.code not in self._said]
        self._said.update(each.code for each in new)
        return new

    def _judge(self, window: NDArray[np.float32]) -> list[Suspicion]:
        peak = float(np.abs(window).max())
        self._quiet = self._quiet + 1 if peak < _QUIET_PEAK else 0
        if self._quiet >= _QUIET_WINDOWS:
            return [_suspect(WarningCode.NEARLY_SILENT)]
        if peak < _QUIET_PEAK:
            return []
        found = []
        mean = float(window.mean())
        if abs(mean) > _OFFSET:
            found.append(_suspect(WarningCode.DC_OFFSET))
        self._windows += 1
        looked = self._windows <= _NEW_WINDOWS or self._windows % _SELDOM == 0
        flatness, high = _spectrum(window - np.float32(mean)) if looked else (0.0, 1.0)
        if flatness > _NOISE_FLATNESS and float(window.std()) > _NOISE_RMS:
            found.append(_suspect(WarningCode.NOISE))
        elif peak >= _CLIPPED and float(np.mean(np.abs(window) >= _CLIPPED)) > _CLIPPED_SHARE:
            found.append(_suspect(WarningCode.CLIPPING))
        if high < _LOW_SHARE:
            found.append(_suspect(WarningCode.SAMPLE_RATE))
        return found


def _spectrum(window: NDArray[np.float32]) -> tuple[float, float]:
    """Return the flatness of the mean spectrum (1: white), and its share of power above ``_LOW_HERTZ``."""
    frames = window[: len(window) - len(window) % _FRAME].reshape(-1, _FRAME)  # [n] -> [f, 512]
    power = (np.abs(np.fft.rfft(frames * np.hanning(_FRAME))) ** 2).mean(axis=0)[2:] + 1e-12
    flatness = float(np.exp(np.log(power).mean()) / power.mean())
    first = round(_LOW_HERTZ / (SAMPLE_RATE / _FRAME)) - 2
    return flatness, float(power[first:].sum() / power.sum())


_TEXTS = {
    WarningCode.NEARLY_SILENT: "hardly any sound for twelve seconds; is the microphone muted?",
    WarningCode.DC_OFFSET: "the audio is not centred on zero; check the microphone or the encoding",
    WarningCode.NOISE: "the audio is loud white noise; check that encoding and channels describe it",
    WarningCode.CLIPPING: "the audio is clipped; turn the microphone's level down",
    WarningCode.SAMPLE_RATE: (
        "the audio sounds far too slow; check that sample_rate is the one it was recorded with"
    ),
}


def _suspect(code: WarningCode) -> Suspicion:
    return Suspicion(code=code, message=_TEXTS[code])
