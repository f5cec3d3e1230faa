"""What the header of an audio file promises, so that a file that was cut is known as one. Loads no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Literal, Protocol

import av
from av.container import InputContainer

__all__ = [
    "EXACT",
    "FileBytes",
    "HeadBytes",
    "Raw",
    "declared_seconds",
    "promised_seconds",
    "stops_inside_page",
]

# Containers that say how many samples there are, to the sample. FFmpeg takes their word, not the file's size.
EXACT = frozenset({"wav", "flac", "aiff", "au", "wv", "tta"})
_DECLARED = (EXACT - {"wav"}) | {"mov,mp4,m4a,3gp,3g2,mj2"}
_ENDLESS = 0x7FFF_0000  # data sizes from here on are what streams say that cannot know theirs
_SLACK_SECONDS = (
    0.05  # by which writers are known to be wrong: a header, or a chunk, counted as samples
)
_CHUNKS = 64  # looked at before the samples
_PAGE_BYTES = 65_307  # of Ogg, at most
_PAGE_HEADER = 27  # bytes; the last one counts the segments, whose sizes follow
_FIRST_FRAME = 256  # bytes of an MP3 in which its own header lies
_MP3_RATES = (44_100, 48_000, 32_000)  # of MPEG 1
_HEAD_BYTES = 1 << 16  # kept of a pipe


class Raw(Protocol):
    """The bytes of a file, without its reader's place in it."""

    @property
    def size(self) -> int: ...
    def at(self, place: int, count: int) -> bytes:
        """``count`` bytes from ``place``, or as many as can be seen there."""


class FileBytes:
    """A file on disk, or one that is open and can be searched; its place is left as it was."""

    def __init__(self, source: str | Path | IO[bytes]) -> None:
        self._source = source

    @property
    def size(self) -> int:
        """0 where it cannot be known."""
        try:
            if isinstance(self._source, (str, Path)):
                return os.stat(self._source).st_size
            before = self._source.tell()
            size = self._source.seek(0, os.SEEK_END)
            self._source.seek(before)
        except (OSError, ValueError, AttributeError):  # not every reader can be searched
            return 0
        return size

    def at(self, place: int, count: int) -> bytes:
        try:
            if isinstance(self._source, (str, Path)):
                with open(self._source, "rb") as file:
                    file.seek(place)
                    return file.read(count)
            before = self._source.tell()
            self._source.seek(place)
            data = self._source.read(count)
            self._source.seek(before)
        except (OSError, ValueError, AttributeError):
            return b""
        return data


class HeadBytes:
    """What comes through a pipe: its first bytes are kept, all are counted."""

    def __init__(self) -> None:
        self.size = 0
        self._head = b""

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        self.size += len(data)
        if len(self._head) < _HEAD_BYTES:
            self._head += data[: _HEAD_BYTES - len(self._head)]

    def at(self, place: int, count: int) -> bytes:
        return self._head[place : place + count]


def declared_seconds(container: InputContainer) -> float | None:
    """What FFmpeg says of the sound's length, where it has it from a header and does not guess."""
    name, stream = container.format.name, container.streams.audio[0]
    if name == "matroska,webm":
        if len(container.streams) == 1 and container.duration:
            return container.duration / av.time_base
        return _clock(
            stream.metadata.get("DURATION", "")
        )  # of this track; the file's may be the picture's
    if name not in _DECLARED or stream.duration is None or stream.time_base is None:
        return None
    return float(stream.duration * stream.time_base)


def promised_seconds(name: str, declared: float | None, raw: Raw | None) -> float | None:
    """Seconds of sound that the header promises. None: it does not say, or nothing is known of it.

    Args:
        name: FFmpeg's, of the container.
        declared: as :func:`declared_seconds` gives it.
        raw: once all was read; None where only FFmpeg has seen the file.
    """
    if name in ("wav", "mp3"):
        if raw is None:
            return None
        return _wav_promise(raw) if name == "wav" else _mp3_promise(raw)
    return declared


def stops_inside_page(name: str, raw: Raw | None) -> bool:
    """Whether an Ogg file ends before the last page does that has begun in it."""
    if raw is None or name != "ogg":
        return False
    tail = raw.at(max(0, raw.size - _PAGE_BYTES), _PAGE_BYTES)
    page = tail[tail.rfind(b"OggS") :] if b"OggS" in tail else b""
    if len(page) < _PAGE_HEADER:
        return bool(page)
    segments = page[_PAGE_HEADER : _PAGE_HEADER + page[_PAGE_HEADER - 1]]
    return len(page) < _PAGE_HEADER + page[_PAGE_HEADER - 1] + sum(segments)


def _wav_promise(raw: Raw) -> float | None:
    """Seconds of the ``data`` chunk, if bytes of it are missing.

    The sizes 0 and 0xFFFFFFFF, and others that no file has, stand for "unknown".
    """
    order: Literal["little", "big"] = "big" if raw.at(0, 4) == b"RIFX" else "little"
    size64, bytes_per_second = 0, 0
    for name, place, size in _chunks(raw, order):
        if name == b"ds64":
            size64 = int.from_bytes(raw.at(place + 8, 8), "little")
        elif name == b"fmt ":
            bytes_per_second = int.from_bytes(raw.at(place + 8, 4), order)
        elif name == b"data":
            size = size64 if size == 0xFFFF_FFFF and size64 < 1 << 62 else size
            if not bytes_per_second or (_ENDLESS <= size and not size64):
                return None
            missing = place + size - raw.size
            return size / bytes_per_second if missing > _SLACK_SECONDS * bytes_per_second else None
    return None


def _chunks(raw: Raw, order: Literal["little", "big"]) -> Iterator[tuple[bytes, int, int]]:
    """Name, place and declared size of each chunk up to the samples."""
    place = 12
    for _ in range(_CHUNKS):
        head = raw.at(place, 8)
        if len(head) < 8:
            return
        size = int.from_bytes(head[4:], order)
        yield head[:4], place + 8, size
        place += 8 + size + size % 2


def _mp3_promise(raw: Raw) -> float | None:
    """Seconds of all frames, if the first one counts them (Xing, Info or VBRI). FFmpeg may guess instead."""
    place, head = 0, raw.at(0, 10)
    while head[:3] == b"ID3" and len(head) == 10:
        size = 0
        for byte in head[6:]:
            size = size << 7 | byte & 0x7F
        place += 10 + size
        head = raw.at(place, 10)
    first = raw.at(place, _FIRST_FRAME)
    if len(first) < _FIRST_FRAME or first[0] != 0xFF:
        return None
    version, rate = first[1] >> 3 & 3, first[2] >> 2 & 3
    for tag, offset in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        at = first.find(tag)
        if at > 0 and rate < len(_MP3_RATES) and (tag == b"VBRI" or first[at + 7] & 1):
            frames = int.from_bytes(first[at + offset : at + offset + 4], "big")
            halved = {3: 0, 2: 1, 0: 2}.get(version, 0)  # MPEG 1, 2 and 2.5
            samples = 1152 if version == 3 else 576
            return frames * samples / (_MP3_RATES[rate] >> halved) or None
    return None


def _clock(text: str) -> float | None:
    """Seconds of ``00:01:02.5``."""
    try:
        hours, minutes, seconds = text.split(":")
        return 3600 * int(hours) + 60 * int(minutes) + float(seconds)
    except ValueError:
        return None
