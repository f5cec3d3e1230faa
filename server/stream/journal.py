"""The journal: every open stream's commands on disk, so that a killed daemon loses nothing.

SQLite in write-ahead mode, written by a thread of its own in batches. A batch that is committed
survives the end of the process at any moment; a power failure may cost the last moments, but leaves
the file consistent. The file holds audio and text: it is readable by its owner only.

Every row carries a checksum: SQLite notices a page that cannot be, but not one whose text has changed.
And every stream the number of the last message that may have been sent: a client that has seen a later
one cannot go on with it, since the end of the journal is lost.

A command is kept as it was applied, with its time and the number of the last message before it. To bring
a stream back, its commands are applied again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import JournalError

__all__ = ["CommandRow", "Journal", "StreamRow", "find_path_fault"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    id TEXT PRIMARY KEY, token_hash BLOB NOT NULL, model TEXT NOT NULL, start BLOB NOT NULL,
    config BLOB NOT NULL, opened REAL NOT NULL, touched REAL NOT NULL,
    done INTEGER NOT NULL DEFAULT 0, sent INTEGER NOT NULL DEFAULT 0, checksum INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS commands (
    stream TEXT NOT NULL, n INTEGER NOT NULL, seq INTEGER NOT NULL, now REAL NOT NULL,
    body BLOB NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (stream, n));
CREATE TABLE IF NOT EXISTS segments (
    stream TEXT NOT NULL, id INTEGER NOT NULL, body BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (stream, id));
"""
_SQLITE = b"SQLite format 3\0"  # how every journal begins
_VERSION = 3  # of the schema and of the commands in it
_BUSY_SECONDS = 30.0  # to wait for other processes of the daemon that write just now
MOST_WAITING = 32 * 1024 * 1024  # bytes not written yet, above which streams wait


class StreamRow(NamedTuple):
    """A stream in the journal, without its commands. Times are seconds since 1970."""

    id: str
    token_hash: bytes
    model: str
    start: bytes  # the client's message, encoded
    config: bytes  # the options that the stream began with, encoded
    opened: float = 0.0
    touched: float = 0.0  # when it was opened or, later, when it ended
    done: int = 0  # 1: complete, only its transcript is left
    sent: int = 0  # number of the last message that a client may have got


_FIXED = 6  # columns of a stream that never change: those under its checksum


class CommandRow(NamedTuple):
    """A command in the journal."""

    number: int
    seq: int  # of the last message before it
    now: float  # its time, in seconds since the stream was opened
    body: bytes  # encoded


class _Operation(NamedTuple):
    stream: str
    statement: str
    values: tuple[object, ...]


class Journal:
    """The journal's file, written by a thread and owned by one event loop.

    Writing returns at once; ``durable`` waits until all that was written before is safe.

    Args:
        clock: seconds since 1970.

    Raises JournalError when the file cannot be opened, or is not a journal of this version.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._condition = threading.Condition()
        self._waiting: list[_Operation] = []
        self._waiting_bytes = 0
        self._ticket = 0  # operations accepted
        self._written = 0  # operations committed, or given up
        self._failed: dict[str, str] = {}  # streams whose commands are not all there, and why
        self._sleepers: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._closed = False
        try:
            self._database = _open(path)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"--journal {path} cannot be used {_why(path, error)}") from None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    # Writing

    def open_stream(self, row: StreamRow) -> None:
        """Begin a stream: it is opened now."""
        now = self._clock()
        row = row._replace(opened=now, touched=now)
        statement = "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        self._add(row.id, statement, (*row, _checksum(*row[:_FIXED])))

    def command(self, stream: str, row: CommandRow) -> None:
        """Append a command."""
        values = (stream, *row)
        statement = "INSERT INTO commands VALUES (?, ?, ?, ?, ?, ?)"
        self._add(stream, statement, (*values, _checksum(*values)))

    def segment(self, stream: str, number: int, body: bytes) -> None:
        """Append a closed segment to the transcript."""
        values = (stream, number, body)
        statement = "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?)"
        self._add(stream, statement, (*values, _checksum(*values)))

    def mark_sent(self, stream: str, seq: int) -> None:
        """Note that messages up to ``seq`` may be sent, once this is ``durable``."""
        self._add(stream, "UPDATE streams SET sent = ? WHERE id = ?", (seq, stream))

    def finish_stream(self, stream: str) -> None:
        """Delete the commands of a complete stream, its audio with them; its transcript stays."""
        self._add(stream, "DELETE FROM commands WHERE stream = ?", (stream,))
        values = (self._clock(), stream)
        self._add(stream, "UPDATE streams SET done = 1, touched = ? WHERE id = ?", values)

    def delete_stream(self, stream: str) -> None:
        """Delete all there is of a stream."""
        for table, column in (("commands", "stream"), ("segments", "stream"), ("streams", "id")):
            self._add(stream, f"DELETE FROM {table} WHERE {column} = ?", (stream,))

    async def probe(self) -> None:
        """Write something and take it back; raises JournalError where that cannot be done."""
        name = f"probe-{secrets.token_hex(8)}"
        self.open_stream(StreamRow(name, b"", "", b"", b"", done=1))
        self.delete_stream(name)
        try:
            await self.durable(name)
        finally:
            self._failed.pop(name, None)

    @property
    def crowded(self) -> bool:
        """True while more waits to be written than memory should hold: streams should wait too."""
        return self._waiting_bytes > MOST_WAITING

    async def durable(self, stream: str) -> None:
        """Wait until everything written so far is safe; raises JournalError if it is not."""
        with self._condition:
            if self._written < self._ticket:
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._sleepers.append((self._ticket, loop, future))
            else:
                future = None
        if future is not None:
            await future
        if stream in self._failed:
            raise JournalError(f"the journal could not be written ({self._failed[stream]})")

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        self._database.close()

    def now(self) -> float:
        """Return the time, as ``opened`` and ``touched`` are measured."""
        return self._clock()

    # Reading, from any thread

    def streams(self) -> list[StreamRow]:
        """All streams that are whole, those touched last first."""
        rows = self._query("SELECT * FROM streams ORDER BY touched DESC", ())
        return [StreamRow._make(row[:-1]) for row in rows if _is_whole(row[:_FIXED], row[-1])]

    def stream(self, stream: str) -> StreamRow | None:
        """Return a stream, or None; raises JournalError where it is damaged."""
        for row in self._query("SELECT * FROM streams WHERE id = ?", (stream,)):
            _check(row[:_FIXED], row[-1])
            return StreamRow._make(row[:-1])
        return None

    def commands(self, stream: str) -> Iterator[CommandRow]:
        """Yield every command in order; raises JournalError where one is damaged or missing."""
        statement = "SELECT * FROM commands WHERE stream = ? ORDER BY n"
        for expected, row in enumerate(self._query(statement, (stream,))):
            _check(row[:-1], row[-1])
            if row[1] != expected:
                raise JournalError(f"the journal is damaged: command {expected} is missing")
            yield CommandRow._make(row[1:-1])

    def segments(self, stream: str) -> list[bytes]:
        """Return the closed segments in order; raises JournalError where one is damaged or missing."""
        statement = "SELECT * FROM segments WHERE stream = ? ORDER BY id"
        bodies = []
        for expected, row in enumerate(self._query(statement, (stream,)), start=1):
            _check(row[:-1], row[-1])
            if row[1] != expected:
                raise JournalError(f"the journal is damaged: segment {expected} is missing")
            bodies.append(row[2])
        return bodies

    def _query(self, statement: str, values: tuple[object, ...]) -> Iterator[tuple[Any, ...]]:
        try:
            with contextlib.closing(sqlite3.connect(self._path)) as database:
                yield from database.execute(statement, values)
        except sqlite3.Error as error:
            raise JournalError(f"the journal cannot be read ({error})") from None

    # The thread

    def _add(self, stream: str, statement: str, values: tuple[object, ...]) -> None:
        with self._condition:
            self._waiting.append(_Operation(stream, statement, values))
            self._waiting_bytes += sum(len(v) for v in values if isinstance(v, bytes))
            self._ticket += 1
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._waiting and not self._closed:
                    self._condition.wait()
                batch, self._waiting, self._waiting_bytes = self._waiting, [], 0
            if not batch:
                return
            self._write(batch)
            with self._condition:
                self._written += len(batch)
                ready = [each for each in self._sleepers if each[0] <= self._written]
                self._sleepers = [each for each in self._sleepers if each[0] > self._written]
            for _, loop, future in ready:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                    loop.call_soon_threadsafe(_wake, future)

    def _write(self, batch: list[_Operation]) -> None:
        try:
            with self._database:
                for operation in batch:
                    self._database.execute(operation.statement, operation.values)
        except sqlite3.Error as error:
            for operation in batch:
                self._failed.setdefault(operation.stream, str(error))


def _checksum(*values: object) -> int:
    """Return the checksum of a row's values and their types."""
    check = 0
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        check = zlib.crc32(data, zlib.crc32(f"{type(value).__name__} {len(data)} ".encode(), check))
    return check


def _is_whole(values: tuple[object, ...], checksum: object) -> bool:
    return _checksum(*values) == checksum


def _check(values: tuple[object, ...], checksum: object) -> None:
    if not _is_whole(values, checksum):
        raise JournalError("the journal is damaged: a row is not what was written")


def _open(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    database = sqlite3.connect(path, check_same_thread=False, timeout=_BUSY_SECONDS)
    try:
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):
            raise OSError(f"it has version {version}; this daemon writes {_VERSION}")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("PRAGMA secure_delete = ON")
        check = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            raise OSError("it is damaged")
        database.executescript(_SCHEMA)
        database.execute(f"PRAGMA user_version = {_VERSION}")
        database.commit()
    except BaseException:
        database.close()
        raise
    return database


def find_path_fault(path: Path) -> str | None:
    """Return the fault of a journal's path, in brackets, and what to do; None: nothing can be seen from outside.

    Nothing is made, opened for writing or changed.
    """
    folder = path.parent
    if path.is_dir():
        return "(it is a folder); name a file in it"
    if not folder.is_dir():
        return f"(there is no folder {folder}); make it, or name another file"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"(this user may not write the folder {folder}); change that, or name another file"
    if not path.exists():
        return None
    if not os.access(path, os.R_OK | os.W_OK):
        return "(this user may not read and write it); change that, or name another file"
    with open(path, "rb") as file:
        start = file.read(len(_SQLITE))
    if start not in (b"", _SQLITE):
        return "(it is not a journal); move it away or name another file"
    return None


def _why(path: Path, error: Exception) -> str:
    """Return the fault of the file, in brackets, and what to do."""
    fault = find_path_fault(path)
    if fault is not None:
        return fault
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"({reason}); move it away or name another file"


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
