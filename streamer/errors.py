"""Errors of the streamer.

WhisperStreamError
└── StreamerError
    ├── BufferFullError   more audio was fed than there is room for
    ├── IngestError       the audio has a form that cannot be read
    ├── DetectorError     the configured speech detector is not installed
    └── EngineClosedError a job was submitted after the engine was closed
"""

from __future__ import annotations

from .. import WhisperStreamError

__all__ = ["BufferFullError", "DetectorError", "EngineClosedError", "IngestError", "StreamerError"]


class StreamerError(WhisperStreamError):
    """Base of the streamer's errors."""


class BufferFullError(StreamerError):
    """More audio was fed than ``StreamSession.room`` allowed."""

    def __init__(self, offered: int, room: int) -> None:
        super().__init__(
            f"{offered} samples do not fit: there is room for {room}; wait for a decode to finish"
        )
        self.offered = offered
        self.room = room


class IngestError(StreamerError):
    """The declared audio format cannot be read here."""


class DetectorError(StreamerError):
    """The configured speech detector is not installed."""


class EngineClosedError(StreamerError):
    """A job was submitted after the engine was closed."""

    def __init__(self) -> None:
        super().__init__("the decoding engine is closed: start a new one")
