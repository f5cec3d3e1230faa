"""Downloads of model files: resumable, verified, and made once when several processes ask. No torch here.

Processes exclude each other by a lock on a file; a terminal shows a progress bar.

Beside the target ``x.pt`` lie, while they are needed, ``x.pt.part`` (what has arrived),
``x.pt.part.etag`` (the server's mark of the version that it is part of) and ``x.pt.lock``.
The target appears only when whole and verified, by an atomic rename.
"""

from __future__ import annotations

import errno
import http.client
import os
import shutil
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..errors import DownloadError
from .checksums import sha256_of

__all__ = ["DownloadOptions", "Report", "download", "locked", "progress_bar"]


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


_CHUNK = 1 << 18
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Statuses that may pass if asked again; every other 4xx is final.
_PASSING = (408, 425, 429)
_BY_HAND = "or fetch the file yourself and put it there"


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadOptions:
    """How patient a download is."""

    timeout_seconds: float = 30.0  # without a byte, then the connection counts as cut
    attempts: int = 4  # in a row that bring nothing new
    wait_seconds: float = 1.0  # before the second attempt; doubles with each
    show_progress: bool = True  # a bar on stderr, if that is a terminal

    def __post_init__(self) -> None:
        if self.timeout_seconds <= 0:
            raise ValueError("timeout_seconds must be positive")
        if self.attempts < 1:
            raise ValueError("attempts must be at least 1")
        if self.wait_seconds < 0:
            raise ValueError("wait_seconds must not be negative")


def download(
    url: str, target: Path, *, sha256: str, options: DownloadOptions | None = None
) -> Path:
    """Fetch ``url`` into ``target`` and return it, unless another process has just done so.

    What arrived before an interruption is kept, and continued from by HTTP Range (RFC 9110, 14).

    Raises:
        DownloadError: not there, not reachable, of another hash, or not storable.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"{url} is no http address: correct the download address.")
    with _storing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with locked(_beside(target, ".lock")):
            if not (target.is_file() and sha256_of((target,)) == sha256):
                _Transfer(url, target, options or DownloadOptions()).run(sha256)
    return target


class _Cut(Exception):
    """The transfer stopped early; what has arrived is in the part file."""


class _Transfer:
    """One file on its way. Holds no data itself: the part file is the state."""

    def __init__(self, url: str, target: Path, options: DownloadOptions) -> None:
        self._url = url
        self._target = target
        self._options = options
        self._part = _beside(target, ".part")
        self._tag = _beside(target, ".part.etag")

    def run(self, sha256: str) -> None:
        resumed = self._arrived() > 0
        self._fetch()
        if sha256_of((self._part,)) != sha256 and resumed:
            # The older part may be of another version of the file, so only a whole fetch can tell.
            self._forget()
            self._fetch()
        if sha256_of((self._part,)) != sha256:
            self._forget()
            raise DownloadError(
                f"What {self._url} gave is not the published file: its SHA-256 is another, so it"
                " was not kept; try again, or check the proxy or mirror in between."
            )
        os.replace(self._part, self._target)
        self._tag.unlink(missing_ok=True)

    def _fetch(self) -> None:
        failures, most = 0, self._arrived()
        with progress_bar(self._target.name, show=self._options.show_progress) as report:
            while True:
                try:
                    return self._attempt(report)
                except _Cut as cut:
                    # Only bytes beyond all earlier attempts count, so this ends.
                    failures = 0 if self._arrived() > most else failures + 1
                    most = max(most, self._arrived())
                    if failures >= self._options.attempts:
                        raise DownloadError(
                            f"The download of {self._url} failed {failures} times: {cut}. Check the"
                            f" network and try again (it goes on from there), {_BY_HAND}:"
                            f" {self._target}."
                        ) from cut
                time.sleep(self._options.wait_seconds * 2 ** max(failures - 1, 0))

    def _attempt(self, report: Report) -> None:
        try:
            response = urllib.request.urlopen(
                self._request(), timeout=self._options.timeout_seconds
            )
        except urllib.error.HTTPError as error:
            with error:
                return self._refused(error)
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(_reason(error)) from error
        with response:
            start = _range_start(response)
            if start != self._arrived():  # the whole file anew: the server cannot or will not go on
                if start:
                    self._forget()
                    raise _Cut("the server sent another range than asked for")
                self._part.unlink(missing_ok=True)
            self._tag.write_text(response.headers.get("ETag") or "")
            self._receive(response, start, report)

    def _receive(self, response: http.client.HTTPResponse, start: int, report: Report) -> None:
        length = response.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
        if total is not None:
            self._check_space(total - start)
        done = start
        report(done, total)
        with self._part.open("ab") as file:
            while chunk := self._read(response):
                file.write(chunk)
                done += len(chunk)
                report(done, total)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and done < total:
            raise _Cut(f"the connection was cut after {done} of {total} bytes")

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(_reason(error)) from error

    def _request(self) -> urllib.request.Request:
        headers = {"User-Agent": "whisper-stream", "Accept-Encoding": "identity"}
        if arrived := self._arrived():
            headers["Range"] = f"bytes={arrived}-"
            tag = self._tag.read_text() if self._tag.is_file() else ""
            if tag and not tag.startswith("W/"):  # If-Range takes strong validators only
                headers["If-Range"] = tag
        return urllib.request.Request(self._url, headers=headers)

    def _refused(self, error: urllib.error.HTTPError) -> None:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            if error.headers.get("Content-Range") == f"bytes */{self._arrived()}":
                return  # everything had arrived; the hash decides
            self._forget()
            raise _Cut("the server has no such range")
        if error.code >= 500 or error.code in _PASSING:
            raise _Cut(f"the server answered {error.code} {error.reason}")
        raise DownloadError(
            f"The server refused {self._url} with {error.code} {error.reason}: check the download"
            f" address (WHISPER_STREAM_DOWNLOAD_URL), {_BY_HAND}: {self._target}."
        )

    def _check_space(self, needed: int) -> None:
        free = shutil.disk_usage(self._part.parent).free
        if needed > free:
            raise OSError(errno.ENOSPC, f"{needed} bytes are needed and {free} are free")

    def _arrived(self) -> int:
        return self._part.stat().st_size if self._part.is_file() else 0

    def _forget(self) -> None:
        self._part.unlink(missing_ok=True)
        self._tag.unlink(missing_ok=True)


@contextmanager
def _storing(target: Path) -> Iterator[None]:
    """Turn what the file system says into a sentence; the network's errors are `_Cut` by now."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise DownloadError(
                f"The disk that holds {target.parent} is full ({reason}): free some space, or"
                " choose another folder for models; what has arrived is kept."
            ) from error
        raise DownloadError(
            f"Cannot store the model in {target.parent} ({reason}): make it writable, or choose"
            " another folder for models."
        ) from error


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(target.name + suffix)


def _range_start(response: http.client.HTTPResponse) -> int:
    """Offset of the first byte that the response carries."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    unit, _, span = response.headers.get("Content-Range", "").partition(" ")
    first = span.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdecimal() else -1


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.URLError):
        error = error.reason if isinstance(error.reason, Exception) else error
    if isinstance(error, TimeoutError):
        return "the server fell silent"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
