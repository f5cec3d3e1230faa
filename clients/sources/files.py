"""Audio files as a stream of 16 kHz mono PCM, and the clock that plays them at a chosen speed."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import av
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.audio.stream import AudioStream
from av.container import InputContainer

from ...model.media.damage import Damage
from ...model.media.headers import FileBytes, Raw
from ..errors import SourceError

__all__ = ["CHUNK_SAMPLES", "SAMPLE_RATE", "AudioSource", "Pacer", "Source", "reason_of"]

SAMPLE_RATE = 16_000
CHUNK_SAMPLES = SAMPLE_RATE // 10  # 100 ms, as a live microphone would send it
_CONTROL_BYTES = frozenset(range(32)) - frozenset(b"\t\n\f\r\x1b")  # in no text
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
        self._watch: Damage | None = None

    @property
    def damage(self) -> str | None:
        """What is missing in the file as far as the latest pass came, after its name in one sentence.

        Not all damage shows: see :mod:`..model.damage`.
        """
        found = self._watch and self._watch.report()
        return f"{self.name} {found}" if found else None

    def check(self) -> float | None:
        """See that the file can be read and holds at least one sample.

        Returns:
            The duration in seconds that the file declares, or None if it declares none.

        Raises:
            SourceError: it is missing, no regular file, empty, not audio, or without a sample.
        """
        self._check_file()
        with self._open() as container:
            stream = self._audio_stream(container)
            if not any(frame.samples for frame in self._frames(container, stream)):
                raise SourceError(f"{self.name}: the file holds no audio samples; nothing to play")
            if stream.duration is not None and stream.time_base is not None:
                return float(stream.duration * stream.time_base)
            return container.duration / av.time_base if container.duration else None

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

    def _check_file(self) -> None:
        try:
            info = os.stat(self.path)
        except FileNotFoundError:
            raise SourceError(f"{self.name}: no such file; check the path") from None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            raise SourceError(f"{self.name}: cannot be opened: {reason_of(error)}") from None
        if stat.S_ISDIR(info.st_mode):
            raise SourceError(f"{self.name}: is a directory; name an audio file in it")
        if not stat.S_ISREG(info.st_mode):
            raise SourceError(f"{self.name}: is not a regular file; save the audio to a file first")
        if info.st_size == 0:
            raise SourceError(f"{self.name}: the file is empty; nothing to play")
        try:
            with open(self.path, "rb") as file:
                head = file.read(4096)
        except OSError as error:
            raise SourceError(f"{self.name}: cannot be read: {reason_of(error)}") from None
        # FFmpeg's guess takes some texts for headerless AMR. Audio always has control bytes.
        if not _CONTROL_BYTES.intersection(head):
            raise SourceError(f"{self.name}: is a text, not audio that can be decoded")

    def _open(self) -> InputContainer:
        try:
            # With "file:" a name such as "http:x.wav" stays the name of a file.
            return av.open(f"file:{self.path}", mode="r", metadata_errors="replace")
        except (av.error.FFmpegError, OSError, ValueError) as error:
            reason = f"is not audio that can be decoded ({reason_of(error)})"
            raise SourceError(f"{self.name}: {reason}") from None

    def _file_bytes(self) -> Raw | None:
        """The bytes themselves, as far as they can be seen."""
        return FileBytes(self.path)

    def _audio_stream(self, container: InputContainer) -> AudioStream:
        if not container.streams.audio:
            raise SourceError(f"{self.name}: has no audio track; name a file with sound")
        return container.streams.audio[0]

    def _frames(self, container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
        self._watch = watch = Damage(container, self._file_bytes())
        # The empty packet at the end of demux() flushes the decoder.
        packets = container.demux(stream)
        while True:
            try:
                packet = next(packets, None)
            except (av.error.FFmpegError, OSError) as error:
                if isinstance(error, av.error.InvalidDataError) and watch.begun:
                    watch.failed()  # what there is of a file that was cut is played
                    watch.end()
                    return
                raise SourceError(f"{self.name}: reading failed: {reason_of(error)}") from None
            if packet is None:
                watch.end()
                return
            try:
                frames = packet.decode()
            except av.error.FFmpegError:
                watch.failed()
                continue
            for frame in frames:
                if isinstance(frame, AudioFrame):
                    watch.frame(frame)
                    yield frame

    def _pcm(self) -> Iterator[bytes]:
        self._check_file()
        with self._open() as container:
            stream = self._audio_stream(container)
            resampler: AudioResampler | None = None
            layout: _Layout | None = None
            for frame in self._frames(container, stream):
                if layout != (layout := _Layout.of(frame)):  # at the start, or changed on the way
                    yield from _resampled(resampler, None)
                    resampler = AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
                # Time stamps may jump in damaged files; samples are counted, not stamped.
                frame.pts = None
                try:
                    yield from _resampled(resampler, frame)
                except av.error.FFmpegError:  # no rate or layout that there is
                    resampler = layout = None
                    if self._watch is not None:
                        self._watch.failed()
            yield from _resampled(resampler, None)


@dataclass(frozen=True, slots=True)
class _Layout:
    rate: int
    format: str
    channels: str

    @classmethod
    def of(cls, frame: AudioFrame) -> _Layout:
        return cls(frame.sample_rate, frame.format.name, frame.layout.name)


def _resampled(resampler: AudioResampler | None, frame: AudioFrame | None) -> Iterator[bytes]:
    if resampler is not None:
        for out in resampler.resample(frame):
            yield out.to_ndarray().tobytes()


def _take(chunks: Iterator[bytes], count: int) -> list[bytes]:
    return list(itertools.islice(chunks, count))


def reason_of(error: Exception) -> str:
    """What FFmpeg or the system says, without number and name."""
    strerror = getattr(error, "strerror", None)
    return str(strerror or error).lower()


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
