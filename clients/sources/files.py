"""Audio files as a stream of 16 kHz mono PCM, and the clock that plays them at a chosen speed."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ...model.errors import AudioError
from ...model.media.decode import AudioTrack, open_file, reason_of
from ...model.media.pcm import SAMPLE_RATE
from ..errors import SourceError

__all__ = [
    "CHUNK_SAMPLES",
    "SAMPLE_RATE",
    "AudioSource",
    "Pacer",
    "Source",
    "reason_of",
    "source_errors",
]

CHUNK_SAMPLES = SAMPLE_RATE // 10  # 100 ms, as a live microphone would send it
_CHUNKS_PER_TURN = 10  # chunks decoded in one visit to the thread


class Source(Protocol):
    """Where audio comes from.

    ``name`` is for messages; ``doubt`` says, while audio comes, that it can hardly be what it was said to be;
    ``damage`` what the latest pass found missing.
    """

    name: str
    doubt: str | None

    @property
    def damage(self) -> str | None: ...

    def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield s16le mono at 16 kHz in pieces of about 100 ms; raises SourceError."""


class AudioSource:
    """Any audio file FFmpeg can read, decoded bit by bit to s16le mono at 16 kHz."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.name = str(path)
        self.doubt: str | None = None
        self._track: AudioTrack | None = None  # of the latest pass

    @property
    def damage(self) -> str | None:
        """One sentence on what is missing in the file as far as the latest pass came, or None.

        Not all damage shows: see :mod:`whisper_stream.model.media.damage`.
        """
        found = self._track and self._track.damage.report()
        return f"{self.name} {found}" if found else None

    def check(self) -> float | None:
        """See that the file can be read and holds at least one sample.

        Returns:
            The duration in seconds that the file declares, or None if it declares none.

        Raises:
            SourceError: it is missing, no regular file, empty, not audio, or without a sample.
        """
        with source_errors(), self._begin_pass() as track:
            if not track.has_sound():
                raise track.no_sound()
            return track.duration

    def chunks(self, samples: int = CHUNK_SAMPLES) -> Iterator[bytes]:
        """Yield the whole file in pieces of ``samples`` samples; only the last may be shorter.

        Raises:
            SourceError: as in :meth:`check`, or reading failed on the way.
        """
        size = 2 * samples
        pending = bytearray()
        for block in self._pcm():
            pending += block
            whole = len(pending) - len(pending) % size
            for at in range(0, whole, size):
                yield bytes(pending[at : at + size])
            del pending[:whole]
        if pending:
            yield bytes(pending)

    async def stream(self, samples: int = CHUNK_SAMPLES) -> AsyncGenerator[bytes, None]:
        """The same as :meth:`chunks`, decoded in a thread so that the event loop goes on."""
        chunks = self.chunks(samples)
        while turn := await asyncio.to_thread(_take, chunks, self._pieces_per_turn()):
            for chunk in turn:
                yield chunk

    def _pieces_per_turn(self) -> int:
        return _CHUNKS_PER_TURN

    def _open(self) -> AudioTrack:
        """Open the track from its start. Raises AudioError."""
        if os.path.exists(self.path) and not os.path.isfile(self.path):
            if not os.path.isdir(self.path):  # it is read twice: to check it, and to play it
                raise AudioError(f"{self.name} is not a regular file: pipe it into standard input")
        return open_file(self.path, self.name)

    def _begin_pass(self) -> AudioTrack:
        self._track = self._open()
        return self._track

    def _pcm(self) -> Iterator[bytes]:
        """Yield the samples as s16le, in pieces of any size."""
        with source_errors(), self._begin_pass() as track:
            for block in track.blocks(SAMPLE_RATE):
                yield block.tobytes()


@contextmanager
def source_errors() -> Iterator[None]:
    """Raise what is wrong with the audio as an error of the clients."""
    try:
        yield
    except AudioError as error:
        raise SourceError(str(error)) from error


def _take(chunks: Iterator[bytes], count: int) -> list[bytes]:
    return list(itertools.islice(chunks, count))


class Pacer:
    """When audio is due. Deadlines are absolute, so that waiting late once never adds up to drift.

    ``speed`` 1 is real time, 2 twice as fast, 0 without any wait. A piece is due once it has been
    spoken to its end, as a live microphone would deliver it.
    """

    def __init__(self, speed: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.speed = speed
        self._clock = clock
        self._start: float | None = None

    def delay(self, samples: int) -> float:
        """Seconds to wait until ``samples`` samples, counted from the first, are due."""
        now = self._clock()
        if self._start is None:
            self._start = now
        if self.speed == 0:
            return 0.0
        return max(0.0, self._start + samples / (SAMPLE_RATE * self.speed) - now)
