"""Where a daemon's processor time goes: its main thread is looked at every few milliseconds, from within."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path
from types import FrameType

__all__ = ["Sampled", "parts_of", "read_profile"]

SAMPLE_SECONDS = 0.002  # between two looks of the profile

# Which part of the daemon a function belongs to, by where its file lies; the first that fits.
PARTS = (
    ("vad", ("streamer/vad.py", "webrtcvad")),
    (
        "session",
        (
            "streamer/",
            "server/recording.py",
            "server/commands.py",
            "server/bridge.py",
            "server/pulse.py",
        ),
    ),
    ("messages", ("server/codec.py", "server/mapping.py", "server/mailbox.py", "server/outbox.py")),
    ("watching", ("server/monitor.py", "server/debug.py", "server/word_times.py")),
    ("connection", ("server/",)),
    ("sockets", ("uvicorn", "websockets", "starlette", "asyncio", "selectors", "ssl.py")),
)


class Sampled:
    """Looks every few milliseconds of processor time where the main thread is."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()
        self._began = 0.0

    def begin(self) -> None:
        self._began = time.process_time()
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)

    def end(self) -> dict[str, float]:
        """Processor seconds by file and function."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        each = (time.process_time() - self._began) / max(1, self._lines.total())
        return {line: count * each for line, count in self._lines.most_common()}

    def _look(self, number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self._lines[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1


def read_profile(path: str) -> dict[str, float]:
    lines: dict[str, float] = json.loads(Path(path).read_text())
    return lines


def parts_of(lines: dict[str, float], stream_seconds: float) -> dict[str, float]:
    """Processor seconds for each second of a stream, by part; C functions count to their callers."""
    spent: Counter[str] = Counter()
    for line, seconds in lines.items():
        spent[_part(line)] += seconds / stream_seconds
    return {part: round(share, 6) for part, share in spent.most_common()}


def _part(file: str) -> str:
    return next((part for part, marks in PARTS if any(m in file for m in marks)), "other")
