"""A progress bar for downloads, on a terminal only. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Report", "progress_bar"]

Report = Callable[[int, int | None], None]  # bytes here, bytes in all or None if not known


@contextmanager
def progress_bar(title: str, *, show: bool) -> Iterator[Report]:
    """Give the function that takes the progress. Draws on stderr if that is a terminal."""
    if not (show and sys.stderr.isatty()):
        yield lambda done, total: None
        return
    # Imported here: most runs download nothing.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn
    from rich.progress import TransferSpeedColumn as SpeedColumn

    columns = ("{task.description}", BarColumn(), DownloadColumn(), SpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
