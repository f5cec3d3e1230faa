"""Counters that several processes share: open streams, admissions, and the usage of each key.

They lie in one page of memory that all processes map, with a lock on its file. Each process writes its own
row, so what a process had open when it died is taken back by clearing its row.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import mmap
from collections.abc import Iterator

import numpy as np

from ..config import MOST_INGRESS
from .shared_audio import create_shared_file

__all__ = ["MOST_PROCESSES", "SharedCounters", "SharedKeyUsage"]

MOST_PROCESSES = MOST_INGRESS + 1  # and the one with the engine
_MOST_KEYS = 4096
_MOST_ADMISSIONS = 4096  # remembered, in a ring
_ROW = np.dtype([("streams", "<i8"), ("connections", "<i8")])
_KEY = np.dtype(
    [
        ("digest", "u1", 32),
        ("day", "<i8"),
        ("seconds", "<f8"),
        ("bytes", "<i8"),
        ("connections", "<i4", MOST_PROCESSES),
    ]
)
_LAYOUT = np.dtype(
    [
        ("rows", _ROW, MOST_PROCESSES),
        ("keys_known", "<i8"),
        ("keys", _KEY, _MOST_KEYS),
        ("admission_count", "<i8"),
        ("admissions", "<f8", _MOST_ADMISSIONS),
    ]
)


class SharedCounters:
    """The counters as one process sees them. It is an ``AdmissionLog`` too.

    Args:
        descriptor: of the file, from ``create``; stays open, and belongs to this object from now on.
        number: the row of this process.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self.descriptor = descriptor
        self._number = number
        self._map = mmap.mmap(descriptor, _LAYOUT.itemsize)
        self._all = np.frombuffer(self._map, _LAYOUT)[0]
        self._keys: dict[bytes, int] = {}  # index of each key, by digest

    @classmethod
    def create(cls, number: int) -> SharedCounters:
        """Return new counters, all zero; other processes map them by their descriptor."""
        return cls(create_shared_file(_LAYOUT.itemsize), number)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep the other processes out; for microseconds only, and not twice in one process."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def publish(self, streams: int, connections: int) -> None:
        """Write what this process has open."""
        self._all["rows"][self._number] = (streams, connections)

    @property
    def streams(self) -> int:
        """Streams that are open in all processes."""
        return int(self._all["rows"]["streams"].sum())

    @property
    def connections(self) -> int:
        """Connections that are open in all processes."""
        return int(self._all["rows"]["connections"].sum())

    def clear(self, number: int) -> None:
        """Take back what process ``number`` had open: it has ended."""
        with self.lock():
            self._all["rows"][number] = (0, 0)
            self._all["keys"]["connections"][:, number] = 0

    # Admissions; clocks are monotonic, and the same in all processes

    def add_admission(self, now: float) -> None:
        """Note that a stream was admitted."""
        at = int(self._all["admission_count"])
        self._all["admissions"][at % _MOST_ADMISSIONS] = now
        self._all["admission_count"] = at + 1

    def count_admissions(self, now: float, seconds: float) -> int:
        """Return the number of streams that all processes admitted in the last ``seconds``."""
        known = min(int(self._all["admission_count"]), _MOST_ADMISSIONS)
        return int((now - self._all["admissions"][:known] < seconds).sum())

    # Keys

    def key(self, digest: bytes) -> int:
        """Return the index of a key; where there are too many keys, all further ones share the last index."""
        if digest not in self._keys:
            wanted = np.frombuffer(digest, np.uint8)
            with self.lock():
                known = int(self._all["keys_known"])
                same = (self._all["keys"]["digest"][:known] == wanted).all(axis=1)
                index = int(same.argmax()) if same.any() else min(known, _MOST_KEYS - 1)
                if not same.any():
                    self._all["keys"][index]["digest"] = wanted
                    self._all["keys_known"] = index + 1
            self._keys[digest] = index
        return self._keys[digest]

    def key_connections(self, index: int) -> int:
        """Return the connections of a key to all processes."""
        return int(self._all["keys"]["connections"][index].sum())

    def connect_key(self, index: int, change: int) -> None:
        """Count connections of a key to this process."""
        self._all["keys"]["connections"][index, self._number] += change

    def use_key(self, index: int, day: int, size: int, seconds: float) -> tuple[int, float]:
        """Count audio of a key; return the bytes and the seconds of ``day`` in all processes."""
        with self.lock():
            row = self._all["keys"][index]
            if row["day"] != day:
                row["day"], row["seconds"], row["bytes"] = day, 0.0, 0
            row["seconds"] += seconds
            row["bytes"] += size
            return int(row["bytes"]), float(row["seconds"])


class SharedKeyUsage:
    """The usage of one key in the whole daemon: a ``KeyUsage`` in shared memory."""

    def __init__(self, counters: SharedCounters, digest: bytes) -> None:
        self._counters = counters
        self._index = counters.key(digest)

    @property
    def streams(self) -> int:
        """Connections of the key to all processes."""
        return self._counters.key_connections(self._index)

    def add_streams(self, change: int) -> None:
        """Count connections that this process opened or, below zero, closed."""
        self._counters.connect_key(self._index, change)

    def add_audio(self, day: datetime.date, size: int, seconds: float) -> tuple[int, float]:
        """Count audio; return the bytes and the seconds of ``day`` in all processes."""
        return self._counters.use_key(self._index, day.toordinal(), size, seconds)
