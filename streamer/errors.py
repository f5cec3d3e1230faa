"""Errors of the streamer.

WhisperStreamError
└── StreamError
    ├── BufferFullError   more audio was fed than there is room for
    ├── IngestError       audio in a form that cannot be read
    ├── DetectorError     the speech detector asked for cannot be had
    └── EngineClosedError a job was submitted after the engine was closed
"""

from __future__ import annotations

from .. import WhisperStreamError

__all__ = ["BufferFullError", "DetectorError", "EngineClosedError", "IngestError", "StreamError"]


class StreamError(WhisperStreamError):
    """Base of the streamer's errors."""


class BufferFullError(StreamError):
    """More audio was fed than ``StreamSession.room`` allowed."""

    def __init__(self, offered: int, room: int) -> None:
        super().__init__(
            f"{offered} samples do not fit: there is room for {room}; wait for a decode to finish"
        )
        self.offered = offered
        self.room = room


class IngestError(StreamError):
    """The declared audio format is not one we can read."""


class DetectorError(StreamError):
    """The speech detector asked for cannot be had."""


class EngineClosedError(StreamError):
    """A job was submitted after the engine was closed."""

    def __init__(self) -> None:
        super().__init__("the decoding engine is closed: start a new one")
