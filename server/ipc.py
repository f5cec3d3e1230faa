"""What the processes of one daemon tell each other: those with streams, those with a model, and their parent.

Both ends are the same program on one machine. Audio lies in memory that both see (``arena.py``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..streamer.jobs import DecodeJob, DecodeResult
from .arena import Arena
from .config import ServerConfig
from .figures import Figures

__all__ = [
    "Broken",
    "Cancel",
    "Collect",
    "Collected",
    "Decode",
    "Decoding",
    "Failure",
    "Hello",
    "Job",
    "Message",
    "Ready",
    "Report",
    "Result",
    "Statistics",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class Hello(_Message, frozen=True, kw_only=True, tag="hello"):
    """To an ingress process, first: who it is, and what the daemon was asked for."""

    number: int  # from 0
    count: int  # ingress processes in all
    folder: str  # of the sockets by which they reach each other
    config: ServerConfig
    model: str
    languages: tuple[str, ...]
    certificate: str | None = None  # paths
    key: str | None = None


class Decode(_Message, frozen=True, kw_only=True, tag="decode"):
    """To an engine process, first: the model to load."""

    number: int  # from 0
    count: int  # engine processes in all
    config: ServerConfig


class Decoding(_Message, frozen=True, kw_only=True, tag="decoding"):
    """From an engine process: its model is loaded and warm."""

    model: str
    languages: tuple[str, ...]


class Ready(_Message, frozen=True, kw_only=True, tag="ready"):
    """From an ingress process: it accepts connections."""


class Broken(_Message, frozen=True, kw_only=True, tag="broken"):
    """From either kind of process: why it cannot start, in one sentence."""

    sentence: str


class Job(_Message, frozen=True, kw_only=True, tag="job"):
    """A job. ``slot`` of the arena has its audio; None: ``audio`` has it, as float32."""

    id: int
    samples: int
    slot: int | None
    audio: bytes = b""
    fields: dict[str, Any]  # all others of DecodeJob

    @classmethod
    def of(cls, number: int, job: DecodeJob, slot: int | None) -> Job:
        names = [each.name for each in dataclasses.fields(job) if each.name != "audio"]
        return cls(
            id=number,
            samples=len(job.audio),
            slot=slot,
            audio=job.audio.astype("<f4").tobytes() if slot is None else b"",
            fields={name: getattr(job, name) for name in names},
        )

    def job(self, arena: Arena) -> DecodeJob:
        """The job as it was; its audio stays in the arena until it is answered."""
        if self.slot is None:
            audio: NDArray[np.float32] = np.frombuffer(self.audio, "<f4").copy()
        else:
            audio = arena.view(self.slot, self.samples)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self.fields.items()
        }
        return DecodeJob(audio=audio, **fields)


class Cancel(_Message, frozen=True, kw_only=True, tag="cancel"):
    """Nobody wants the job's result any more."""

    id: int


class Result(_Message, frozen=True, kw_only=True, tag="result"):
    id: int
    result: DecodeResult


class Failure(_Message, frozen=True, kw_only=True, tag="failure"):
    """The job raised ``error``, a class's name; None: it was cancelled."""

    id: int
    error: str | None


class Statistics(_Message, frozen=True, kw_only=True, tag="statistics"):
    """To the ingress processes, and from those of engines, several times a second: what statistics() gave."""

    fields: dict[str, int | float]


class Collect(_Message, frozen=True, kw_only=True, tag="collect"):
    """From an ingress process: what are the figures of the whole daemon? To each of them: what are yours?"""

    id: int


class Report(_Message, frozen=True, kw_only=True, tag="report"):
    """What one process has counted and used; ``id`` is 0 where nobody asked."""

    id: int
    figures: Figures


class Collected(_Message, frozen=True, kw_only=True, tag="collected"):
    """The figures of all processes together."""

    id: int
    figures: Figures


Message = (
    Hello
    | Decode
    | Decoding
    | Ready
    | Broken
    | Job
    | Cancel
    | Result
    | Failure
    | Statistics
    | Collect
    | Report
    | Collected
)
