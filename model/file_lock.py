"""A lock between processes, held on a file. No torch here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["locked"]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock; waits while another process or thread holds it. The system frees it if we die.

    The file stays: removing it would let a third process lock a new file of the same name.

    Raises:
        OSError: the file cannot be made, or its file system has no locks.
    """
    with path.open("ab") as file:
        _acquire(file)
        try:
            yield
        finally:
            _release(file)


if sys.platform == "win32":
    import msvcrt

    def _acquire(file: BinaryIO) -> None:
        while True:
            try:
                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            except PermissionError:
                continue  # it gives up after ten seconds; a download takes longer
            return

    def _release(file: BinaryIO) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _acquire(file: BinaryIO) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)

    def _release(file: BinaryIO) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_UN)
