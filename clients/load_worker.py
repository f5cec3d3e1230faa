"""One process of ``whisper-stream load``: plays its share of the streams, all in one event loop.

Its parent writes an assignment as a JSON line, reads ``ready``, writes ``go``, and reads the outcomes
as one line. When the parent's end of stdin closes before that, the process ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time

import msgspec

from .load_line import Piece, cut
from .load_plan import StreamPlan
from .load_stream import StreamOutcome, play_stream
from .source import AudioSource

__all__ = ["Assignment", "Share", "main"]

READY, GO = b"ready\n", b"go\n"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    plans: tuple[StreamPlan, ...]
    key: str | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What an assignment came to; ``cpu_seconds`` were used for playing it."""

    outcomes: list[StreamOutcome]
    cpu_seconds: float


def main() -> int:
    """Run one assignment; return the exit code."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    # Decoded before the clock starts: the run itself shall cost this machine as little as it can.
    paths = {clip.path for plan in assignment.plans for clip in plan.clips}
    audio = {path: cut(b"".join(AudioSource(path).chunks())) for path in sorted(paths)}
    _say(READY)
    if sys.stdin.buffer.readline() != GO:
        return 1
    threading.Thread(target=_end_with_parent, daemon=True).start()
    before = time.process_time()
    outcomes = asyncio.run(_play(assignment, audio))
    share = Share(outcomes=outcomes, cpu_seconds=time.process_time() - before)
    _say(msgspec.json.encode(share) + b"\n")
    return 0


async def _play(assignment: Assignment, audio: dict[str, tuple[Piece, ...]]) -> list[StreamOutcome]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                play_stream(
                    plan,
                    [audio[clip.path] for clip in plan.clips],
                    assignment.url,
                    assignment.key,
                )
            )
            for plan in assignment.plans
        ]
    return [task.result() for task in tasks]


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
