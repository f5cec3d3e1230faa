"""Counts that several processes share: who has how many streams, and what each key has used.

A page of memory that all of them map, and a lock on its file. Each process writes its own row, so
what one that died had open is taken back by clearing its row.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import mmap
from collections.abc import Iterator

import numpy as np

from ..config import MOST_INGRESS
from ..http.admission import Admission
from ..http.auth import Account
from .shared_audio import shared_file

__all__ = ["MOST_PROCESSES", "SharedCounters", "SharedAccount", "SharedAdmission"]

MOST_PROCESSES = MOST_INGRESS + 1  # and the one with the engine
_MOST_KEYS = 4096
_MOST_FRESH = 4096  # streams let in lately
_SHORT = 5.0  # seconds that count as lately
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
        ("fresh_count", "<i8"),
        ("fresh", "<f8", _MOST_FRESH),
    ]
)


class SharedCounters:
    """One process's view.

    Args:
        descriptor: of the file, from ``create``; stays open, and is this object's from now on.
        number: the row of this process.
    """

    def __init__(self, descriptor: int, number: int) -> None:
        self.descriptor = descriptor
        self._number = number
        self._map = mmap.mmap(descriptor, _LAYOUT.itemsize)
        self._all = np.frombuffer(self._map, _LAYOUT)[0]
        self._places: dict[bytes, int] = {}  # of keys, by digest

    @classmethod
    def create(cls, number: int) -> SharedCounters:
        """Return an empty counters; others join by its descriptor."""
        return cls(shared_file(_LAYOUT.itemsize), number)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep the other processes out; for microseconds only, and not twice in one process."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def publish(self, streams: int, connections: int) -> None:
        """Say what this process has open."""
        self._all["rows"][self._number] = (streams, connections)

    @property
    def streams(self) -> int:
        """Open in all processes."""
        return int(self._all["rows"]["streams"].sum())

    @property
    def connections(self) -> int:
        return int(self._all["rows"]["connections"].sum())

    def clear(self, number: int) -> None:
        """The process with this number has ended: it has nothing open any more."""
        with self.lock():
            self._all["rows"][number] = (0, 0)
            self._all["keys"]["connections"][:, number] = 0

    # Streams let in lately

    def admitted(self, now: float) -> None:
        at = int(self._all["fresh_count"])
        self._all["fresh"][at % _MOST_FRESH] = now
        self._all["fresh_count"] = at + 1

    def fresh(self, now: float, seconds: float) -> int:
        """How many were let in within so many seconds; clocks are monotonic, the same in all processes."""
        known = min(int(self._all["fresh_count"]), _MOST_FRESH)
        return int((now - self._all["fresh"][:known] < seconds).sum())

    # Keys

    def key(self, digest: bytes) -> int:
        """Return the place of a key; where there are too many, all further ones share the last."""
        if digest not in self._places:
            wanted = np.frombuffer(digest, np.uint8)
            with self.lock():
                known = int(self._all["keys_known"])
                same = (self._all["keys"]["digest"][:known] == wanted).all(axis=1)
                place = int(same.argmax()) if same.any() else min(known, _MOST_KEYS - 1)
                if not same.any():
                    self._all["keys"][place]["digest"] = wanted
                    self._all["keys_known"] = place + 1
            self._places[digest] = place
        return self._places[digest]

    def key_connections(self, place: int) -> int:
        return int(self._all["keys"]["connections"][place].sum())

    def connect_key(self, place: int, change: int) -> None:
        self._all["keys"]["connections"][place, self._number] += change

    def use_key(self, place: int, day: int, size: int, seconds: float) -> tuple[int, float]:
        """Count audio of a day -> bytes and seconds of that day, of all processes."""
        with self.lock():
            row = self._all["keys"][place]
            if row["day"] != day:
                row["day"], row["seconds"], row["bytes"] = day, 0.0, 0
            row["seconds"] += seconds
            row["bytes"] += size
            return int(row["bytes"]), float(row["seconds"])


class SharedAccount(Account):
    """An account that counts on the counters."""

    __slots__ = ("_counters", "_place")

    def __init__(self, account: Account, counters: SharedCounters) -> None:
        self._counters = counters
        self._place = counters.key(account.digest)
        for name in ("name", "digest", "most_streams", "most_seconds", "most_bytes", "expires"):
            setattr(self, name, getattr(account, name))

    @property
    def streams(self) -> int:
        """Connections of this key to the whole daemon."""
        return self._counters.key_connections(self._place)

    @streams.setter
    def streams(self, value: int) -> None:
        self._counters.connect_key(self._place, value - self.streams)

    def use(self, today: datetime.date, size: int, seconds: float) -> str | None:
        """Count audio; return which limit is passed, if one is."""
        used, spent = self._counters.use_key(self._place, today.toordinal(), size, seconds)
        if self.most_seconds is not None and spent > self.most_seconds:
            return f"{self.most_seconds / 60:g} minutes of audio a day"
        if self.most_bytes is not None and used > self.most_bytes:
            return f"{self.most_bytes} bytes of audio a day"
        return None

    def inherit(self, old: Account) -> None:
        """Nothing to take over: the counters has it."""


class SharedAdmission(Admission):
    """Lets streams in by what all processes have let in."""

    def __init__(self, most_load: float, counters: SharedCounters) -> None:
        super().__init__(most_load)
        self._counters = counters

    def admitted(self, now: float) -> None:
        self._counters.admitted(now)

    def _fresh(self, now: float) -> int:
        return self._counters.fresh(now, _SHORT)
