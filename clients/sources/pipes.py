"""Audio that is no file: standard input, and addresses that FFmpeg can open."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

import numpy as np
import soxr

from ...model.media.decode import AudioTrack, open_track
from ...model.media.headers import HeadBytes
from ...model.media.pcm import SAMPLE_RATE, SAMPLE_TYPES, FrameCutter
from ...model.media.samples import SampleCheck
from ..errors import SourceError
from .files import CHUNK_SAMPLES, AudioSource, source_errors

__all__ = ["PcmFormat", "PipeSource", "UrlSource"]

_SNIFF_BYTES = 12
_POLL_SECONDS = 0.2  # between looks whether anybody still wants the pipe's audio
_READ_BYTES = 64 * 1024
_NETWORK_SECONDS = 10.0
_SCHEMES = ("http", "https", "rtsp", "rtsps", "rtmp", "rtmps", "srt", "udp", "rtp", "tcp", "hls")
# How containers begin. What begins otherwise is taken for PCM, which has no beginning of its own.
_MAGIC: tuple[bytes, ...] = (
    b"RIFF",
    b"RIFX",
    b"RF64",
    b"OggS",
    b"fLaC",
    b"ID3",
    b"\x1aE\xdf\xa3",
    b"FORM",
    b"caff",
)
_MAGIC += (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2", b"\xff\xf1", b"\xff\xf9", b"FLV\x01", b"#!AMR")


@dataclass(frozen=True, slots=True, kw_only=True)
class PcmFormat:
    """How raw samples lie in a pipe."""

    encoding: str = "s16le"  # or f32le
    sample_rate: int = SAMPLE_RATE
    channels: int = 1  # interleaved


class PipeSource(AudioSource):
    """Standard input: PCM, or any container that can be read from front to back."""

    def __init__(self, pcm: PcmFormat | None = None, pipe: BinaryIO | None = None) -> None:
        """``pcm`` says what the bytes are; None: look, and take what is no container for s16le."""
        super().__init__("standard input")
        self._declared = pcm
        self._reader = _Reader(sys.stdin.fileno() if pipe is None else pipe.fileno())

    def check(self) -> float | None:
        """Nothing can be known before it is read, except that a terminal sends no audio.

        Raises:
            SourceError: it is a terminal.
        """
        if self._reader.is_terminal():
            example = "ffmpeg -i talk.mp4 -f s16le -ar 16000 -ac 1 - | whisper-stream -"
            raise SourceError(
                f"standard input is a terminal; pipe audio into it, as in `{example}`"
            )
        return None

    async def stream(self, samples: int = CHUNK_SAMPLES) -> AsyncGenerator[bytes, None]:
        """As for files; leaving it ends the reading."""
        try:
            async for chunk in super().stream(samples):
                yield chunk
        finally:
            self._reader.closed = True

    def _pieces_per_turn(self) -> int:
        return 1  # as soon as it is there

    def _open(self) -> AudioTrack:
        return open_track(
            self._reader,
            self.name,
            raw=self._reader.seen,
            explain=lambda reason: (
                f"is not audio that can be decoded ({reason}): "
                "for raw PCM say --encoding, --sample-rate and --channels"
            ),
        )

    def _pcm(self) -> Iterator[bytes]:
        head = self._reader.peek(_SNIFF_BYTES)
        if not head:
            raise SourceError(f"{self.name}: ended without any audio")
        if self._declared is None and _is_container(head):
            yield from super()._pcm()
        else:
            yield from self._raw(self._declared or PcmFormat())

    def _raw(self, pcm: PcmFormat) -> Iterator[bytes]:
        resampler = soxr.ResampleStream(pcm.sample_rate, SAMPLE_RATE, 1, dtype="float32")
        dtype = np.dtype(SAMPLE_TYPES[pcm.encoding])
        size = dtype.itemsize * pcm.channels
        frames = FrameCutter(size)
        check = SampleCheck(pcm.encoding)
        while data := self._reader.read(_READ_BYTES):
            samples = np.frombuffer(frames.push(data), dtype)
            if pcm.channels == 1 and pcm.sample_rate == SAMPLE_RATE and pcm.encoding == "s16le":
                yield samples.tobytes()  # the server looks at these itself
                continue
            if doubt := check.look(samples):
                self.doubt = f"{self.name}: {doubt}"
            if pcm.encoding == "f32le":  # one that is not a number would silence all that follows
                samples = np.clip(np.nan_to_num(samples, nan=0.0), -1.0, 1.0)
            mono = samples.reshape(-1, pcm.channels).mean(axis=1, dtype=np.float32)
            scaled = mono if pcm.encoding == "s16le" else mono * np.float32(32_768)
            yield _to_s16(resampler.resample_chunk(scaled))
        yield _to_s16(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        if frames.rest and self.doubt is None:
            fits = "do --encoding and --channels fit?"
            self.doubt = f"{self.name} ends inside a sample of {size} bytes: {fits}"


class UrlSource(AudioSource):
    """An address: a file on a web server, an HLS playlist, a camera over RTSP."""

    def __init__(self, url: str) -> None:
        """Raises SourceError for what is no address of a known kind."""
        super().__init__(url)
        if urlsplit(url).scheme.lower() not in _SCHEMES or not urlsplit(url).netloc:
            known = ", ".join(_SCHEMES[:4])
            raise SourceError(f"--url {url}: is no address of a kind that can be read ({known}, …)")
        self.name = _without_password(url)

    def check(self) -> float | None:
        """Open it once, to see that there is audio; a live address declares no duration."""
        with source_errors(), self._open() as track:
            return track.duration

    def _open(self) -> AudioTrack:
        return open_track(
            str(self.path),
            self.name,
            protocols=None,
            explain=lambda reason: (
                f"cannot be opened ({reason}): check the address, and that it is reached from here"
            ),
            timeout=(_NETWORK_SECONDS, _NETWORK_SECONDS),
            options={"rtsp_transport": "tcp"} if str(self.path).startswith("rtsp") else {},
        )


class _Reader:
    """A pipe as PyAV reads it: whatever is there, without waiting for more; ends once closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._head = b""  # read ahead
        self.seen = HeadBytes()
        self.closed = False

    def is_terminal(self) -> bool:
        return os.isatty(self._descriptor)

    def peek(self, size: int) -> bytes:
        while len(self._head) < size and (more := self._wait(size - len(self._head))):
            self._head += more
        return self._head

    def read(self, size: int = _READ_BYTES) -> bytes:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._wait(size)

    def _wait(self, size: int) -> bytes:
        while not self.closed:
            ready, _, _ = select.select([self._descriptor], [], [], _POLL_SECONDS)
            if ready:
                data = os.read(self._descriptor, size)
                self.seen.add(data)
                return data
        return b""


def _is_container(head: bytes) -> bool:
    return head.startswith(_MAGIC) or head[4:8] == b"ftyp"


def _to_s16(samples: np.typing.NDArray[np.float32]) -> bytes:
    return np.clip(np.rint(samples), -32_768, 32_767).astype("<i2").tobytes()


def _without_password(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=host, query="").geturl()
