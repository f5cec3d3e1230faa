"""Commands: everything that can happen to a stream, each as one value.

The client's commands come from the wire, the engine's from its answers. A stream that is given the same
commands in the same order, at the same times, says the same: so the connection's protocol makes them, the
session queues them at their places in the audio, and the journal keeps them as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from .config import StreamConfig
from .jobs import DecodeResult

__all__ = [
    "Audio",
    "ClientCommand",
    "Command",
    "Configure",
    "EndOfStream",
    "Flush",
    "JobDone",
    "JobFailed",
    "JobStarted",
    "Request",
    "Tick",
]


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Audio(_Command, frozen=True, kw_only=True, tag="audio"):
    """Bytes in the stream's encoding, cut anywhere: the next ones go on from there."""

    data: bytes


class Flush(_Command, frozen=True, kw_only=True, tag="flush"):
    """Commit all audio received so far, and answer with ``id``."""

    id: str = ""


class Configure(_Command, frozen=True, kw_only=True, tag="configure"):
    """Change options from here on; those left out stay as they are."""

    language: str | None | UnsetType = UNSET  # ISO code; None: detect
    languages: tuple[str, ...] | UnsetType = UNSET
    prompt: str | UnsetType = UNSET
    hotwords: str | UnsetType = UNSET
    endpoint_silence: float | UnsetType = UNSET  # seconds

    def revise(self, config: StreamConfig) -> StreamConfig:
        """Return ``config`` with the changes; raises ValueError where they do not fit it."""
        changes: dict[str, Any] = {
            name: value
            for name in self.__struct_fields__
            if (value := getattr(self, name)) is not UNSET
        }
        return replace(config, **changes)


class EndOfStream(_Command, frozen=True, kw_only=True, tag="end_of_stream"):
    """No more audio comes: commit the rest."""


class Tick(_Command, frozen=True, kw_only=True, tag="tick"):
    """There is room again: feed on what had to wait."""


class JobStarted(_Command, frozen=True, kw_only=True, tag="job_started"):
    """The session's next job went out. ``samples``: of its audio, to check a replay by."""

    samples: int


class JobDone(_Command, frozen=True, kw_only=True, tag="job_done"):
    """The job that is out has this result."""

    result: DecodeResult


class JobFailed(_Command, frozen=True, kw_only=True, tag="job_failed"):
    """The job that is out could not be run, for this reason."""

    reason: str


# Carried out by the session once all audio before them has been looked at.
Request = Flush | Configure | EndOfStream
ClientCommand = Audio | Request
Command = ClientCommand | Tick | JobStarted | JobDone | JobFailed
