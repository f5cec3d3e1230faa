"""Speech detectors by name."""

from __future__ import annotations

from typing import assert_never

from ..config import DetectorName
from .vad import SpeechDetector, WebRtcDetector

__all__ = ["make_detector"]


def make_detector(name: DetectorName) -> SpeechDetector:
    """A fresh detector for one stream. Raises DetectorError where its package is missing."""
    match name:
        case "webrtc":
            return WebRtcDetector()
        case "silero":
            from .silero import SileroDetector  # needs torch, and an extra

            return SileroDetector()
        case _:
            assert_never(name)
