"""The display of ``transcribe`` while it works: a bar, or each segment as it is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from ..media.captions import format_clock, milliseconds
from .segments import Segment

__all__ = ["Progress", "progress_bar", "segment_line", "write_segment"]


class Progress(Protocol):
    def __call__(self, frames: int) -> None:
        """``frames``: mel frames done so far, of all."""


def segment_line(segment: Segment) -> str:
    """Return ``[00:00.000 --> 00:02.500] text``, as the ``whisper`` command shows it."""
    start = format_clock(milliseconds(segment.start))
    end = format_clock(milliseconds(segment.end))
    return f"[{start} --> {end}] {segment.text}"


def write_segment(segment: Segment, stream: TextIO | None = None) -> None:
    """Write a segment's line; characters that the stream's encoding lacks become question marks."""
    stream = stream or sys.stdout
    encoding = stream.encoding or "utf-8"
    line = segment_line(segment).encode(encoding, errors="replace").decode(encoding)
    stream.write(line + "\n")
    stream.flush()


@contextmanager
def progress_bar(frames: int, *, shown: bool) -> Iterator[Progress]:
    """Show a bar on standard error when ``shown`` and it is a terminal; otherwise nothing."""
    if not shown or not sys.stderr.isatty():
        yield lambda frames: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("transcribing", total=frames)
        yield lambda done: bar.update(task, completed=min(done, frames))
