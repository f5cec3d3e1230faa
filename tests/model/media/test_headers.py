"""What headers promise, byte by byte: sizes that stand for "unknown", and files that hold less than they say."""

from __future__ import annotations

import io
import struct

import pytest
from whisper_stream.model.media.headers import (
    FileBytes,
    HeadBytes,
    promised_seconds,
    stops_inside_page,
)

RATE = 32_000  # bytes a second: 16 kHz mono in 16 bits


def wav(size: int, there: int, *, riff: bytes = b"RIFF", before: bytes = b"") -> bytes:
    """A header that says ``size`` bytes of samples, and ``there`` bytes of them."""
    order = ">" if riff == b"RIFX" else "<"
    form = struct.pack(f"{order}4sIHHIIHH", b"fmt ", 16, 1, 1, 16_000, RATE, 2, 16)
    data = struct.pack(f"{order}4sI", b"data", size)
    return riff + b"\xff\xff\xff\xff" + b"WAVE" + before + form + data + bytes(there)


def promise(data: bytes) -> float | None:
    return promised_seconds("wav", None, FileBytes(io.BytesIO(data)))


def chunk(name: bytes, body: bytes) -> bytes:
    return name + struct.pack("<I", len(body)) + body + bytes(len(body) % 2)


def test_missing_samples_are_seen() -> None:
    assert promise(wav(10 * RATE, 3 * RATE)) == 10.0
    assert promise(wav(10 * RATE, 3 * RATE, riff=b"RIFX")) == 10.0
    assert promise(wav(10 * RATE, 3 * RATE, before=chunk(b"LIST", b"odd"))) == 10.0


@pytest.mark.parametrize(
    "size", [0, 0xFFFF_FFFF, 0x8000_0000, 0x7FFF_FFFF, 0x7FFF_F000, 0xFFFF_FFFF - 44]
)
def test_sizes_of_streams_promise_nothing(size: int) -> None:
    assert promise(wav(size, 3 * RATE)) is None


@pytest.mark.parametrize("extra", [-RATE, 0, 1, 8, 44, 1_000])
def test_a_whole_file_keeps_its_promise(extra: int) -> None:
    """Also where its writer counted a header or a chunk as samples."""
    assert promise(wav(3 * RATE + extra, 3 * RATE)) is None


def test_sizes_of_64_bits_count() -> None:
    sizes = chunk(b"ds64", struct.pack("<QQQI", 0, 10 * RATE, 0, 0))
    assert promise(wav(0xFFFF_FFFF, 3 * RATE, riff=b"RF64", before=sizes)) == 10.0
    assert promise(wav(0xFFFF_FFFF, 10 * RATE, riff=b"RF64", before=sizes)) is None


@pytest.mark.parametrize("length", range(0, 60, 7))
def test_a_header_that_is_cut_promises_nothing(length: int) -> None:
    assert promise(wav(10 * RATE, 0)[: min(length, 43)]) is None


def test_a_pipe_is_judged_by_what_came_through_it() -> None:
    seen = HeadBytes()
    data = wav(10 * RATE, 3 * RATE)
    for at in range(0, len(data), 777):
        seen.add(data[at : at + 777])
    assert seen.size == len(data) and seen.at(8, 4) == b"WAVE"
    assert promised_seconds("wav", None, seen) == 10.0
    seen.add(bytes(7 * RATE))
    assert promised_seconds("wav", None, seen) is None


@pytest.mark.parametrize(
    ("header", "tag", "seconds"),
    [
        (b"\xff\xfb\x90\x00", b"Xing" + bytes((0, 0, 0, 1)), 1_000 * 1_152 / 44_100),
        (b"\xff\xfb\x94\x00", b"Info" + bytes((0, 0, 0, 15)), 1_000 * 1_152 / 48_000),
        (b"\xff\xf3\x98\x00", b"Xing" + bytes((0, 0, 0, 1)), 1_000 * 576 / 16_000),
        (b"\xff\xe3\x98\x00", b"Xing" + bytes((0, 0, 0, 1)), 1_000 * 576 / 8_000),
        (b"\xff\xfb\x90\x00", b"VBRI" + bytes(10), 1_000 * 1_152 / 44_100),
        (b"\xff\xfb\x90\x00", b"Xing" + bytes((0, 0, 0, 2)), None),  # counts bytes alone
        (b"\xff\xfb\x90\x00", b"----" + bytes(4), None),
        (b"\xff\xfb\x9c\x00", b"Xing" + bytes((0, 0, 0, 1)), None),  # of no known rate
        (b"JUNK", b"Xing" + bytes((0, 0, 0, 1)), None),
    ],
)
def test_an_mp3_is_believed_if_it_counts_its_frames(
    header: bytes, tag: bytes, seconds: float | None
) -> None:
    picture = b"ID3\x04\x00\x00" + bytes((0, 0, 100, 5)) + bytes(100 * 128 + 5)
    frame = header + bytes(32) + tag + (1_000).to_bytes(4, "big") + bytes(400)
    for before in (b"", picture, picture + picture):
        raw = FileBytes(io.BytesIO(before + frame))
        assert promised_seconds("mp3", 99.0, raw) == seconds
    assert promised_seconds("mp3", 99.0, None) is None


def test_pages_that_are_cut_are_seen() -> None:
    page = b"OggS" + bytes(22) + bytes((2, 255, 10)) + bytes(265)
    for length in range(len(page) + 1, 2 * len(page)):
        cut = (page + page)[:length]
        started = cut.rfind(b"OggS") == len(page)
        assert stops_inside_page("ogg", FileBytes(io.BytesIO(cut))) == started
    assert not stops_inside_page("ogg", FileBytes(io.BytesIO(page + page)))
    assert not stops_inside_page("ogg", FileBytes(io.BytesIO(b"")))
    assert not stops_inside_page("wav", FileBytes(io.BytesIO(page[:40])))


def test_a_reader_that_cannot_be_searched_is_left_alone() -> None:
    class Stream(io.RawIOBase):
        def readable(self) -> bool:
            return True

    raw = FileBytes(io.BufferedReader(Stream()))
    assert (raw.size, raw.at(0, 10)) == (0, b"")
    searched = io.BytesIO(b"0123456789")
    searched.seek(4)
    assert (FileBytes(searched).size, FileBytes(searched).at(2, 3)) == (10, b"234")
    assert searched.tell() == 4
