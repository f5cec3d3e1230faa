"""Errors of the streamer.

WhisperStreamError
└── StreamerError
    ├── BufferFullError   more audio was fed than there is room for
    ├── IngestError       audio in a form that cannot be read
    ├── DetectorError     the speech detector asked for cannot be had
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
    """The declared audio format is not one we can read."""


class DetectorError(StreamerError):
    """The speech detector asked for cannot be had."""


class EngineClosedError(StreamerError):
    """A job was submitted after the engine was closed."""

    def __init__(self) -> None:
        super().__init__("the decoding engine is closed: start a new one")
