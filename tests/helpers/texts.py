"""What was said in the test recording, and independent readers of what came out."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import jiwer
import pysrt
import webvtt

__all__ = ["DATA", "SPEECH", "check_times", "errors_in", "png_size", "read_srt", "read_vtt"]

DATA = Path(__file__).parents[1] / "data"
SPEECH = DATA / "en-speech-jfk.wav"  # 11 s, 44.1 kHz, stereo
Cue = tuple[int, int, str]  # start and end in milliseconds, text


def errors_in(said: str) -> jiwer.WordOutput:
    """Differences from what is said in SPEECH, but for case and punctuation."""
    lines = map(json.loads, (DATA / "manifest.jsonl").read_text().splitlines())
    text = next(str(line["text"]) for line in lines if line["file"] == SPEECH.name)
    return jiwer.process_words(_plain(text), _plain(said))


def _plain(text: str) -> str:
    return re.sub(r"[^a-z ]", "", " ".join(text.lower().split()))


def read_srt(text: str) -> list[Cue]:
    return [(cue.start.ordinal, cue.end.ordinal, cue.text) for cue in pysrt.from_string(text)]


def read_vtt(text: str) -> list[Cue]:
    cues: Iterable[webvtt.Caption] = webvtt.from_buffer(StringIO(text)).captions
    return [(_milliseconds(cue.start), _milliseconds(cue.end), cue.text) for cue in cues]


def _milliseconds(stamp: str) -> int:
    hours, minutes, seconds = stamp.split(":")
    return round((int(hours) * 3600 + int(minutes) * 60) * 1000 + float(seconds) * 1000)


def check_times(cues: list[Cue]) -> None:
    """In order, without overlap, and no line wider than 42 characters."""
    assert cues == sorted(cues)
    assert all(start < end for start, end, _ in cues)
    assert all(end <= start for (_, end, _), (start, _, _) in zip(cues, cues[1:], strict=False))
    assert all(len(line) <= 42 for *_, text in cues for line in text.splitlines())


def png_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height
