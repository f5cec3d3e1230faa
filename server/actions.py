"""What a connection's protocol asks its shell to do, in the order given."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import CloseCode
from .wire import Config, Resume, ServerMessage, Start

__all__ = [
    "Acknowledge",
    "Action",
    "CloseConnection",
    "ConfigureStream",
    "FinishStream",
    "FlushStream",
    "OpenStream",
    "PushAudio",
    "Reply",
    "ResumeStream",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStream:
    """Open the stream that ``start`` asks for, and answer ``ready``."""

    start: Start


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeStream:
    """Look up the stream, then call ``resumed`` or ``fail``."""

    resume: Resume


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledge:
    """The client has every message up to ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushAudio:
    """Feed PCM bytes. They may end inside a sample: the next ones go on from there."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushStream:
    """Commit everything received, and answer ``flushed``."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigureStream:
    """Change options from here on, and answer ``configured``."""

    config: Config


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishStream:
    """No more audio: commit the rest, answer ``done``, close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Send this message; ``seq`` is set when it is sent."""

    message: ServerMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseConnection:
    """Close once everything before is sent."""

    code: CloseCode
    reason: str


Action = (
    OpenStream
    | ResumeStream
    | Acknowledge
    | PushAudio
    | FlushStream
    | ConfigureStream
    | FinishStream
    | Reply
    | CloseConnection
)
