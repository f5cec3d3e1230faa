"""SHA-256 of files, and the memory of files that were verified before. No torch here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

__all__ = ["remember", "sha256_of", "verify"]

_CHUNK = 1 << 20


def sha256_of(files: Sequence[Path]) -> str:
    """Hex SHA-256 of the files laid end to end.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def verify(path: Path, *, sha256: str, size: int, records: Path) -> bool:
    """Whether the file has this size and hash.

    Hashing 3 GB takes seconds, so a verified file is remembered in the folder ``records`` by its
    size and time of change, and not hashed again until one of them differs.

    Raises:
        OSError: the file cannot be read.
    """
    if path.stat().st_size != size:
        return False
    record = _record_of(path, records)
    try:
        if json.loads(record.read_bytes()) == _state_of(path, sha256):
            return True
    except (OSError, ValueError):
        pass  # never verified, or the record is unreadable: hash it
    if sha256_of((path,)) != sha256:
        return False
    remember(path, sha256=sha256, records=records)
    return True


def remember(path: Path, *, sha256: str, records: Path) -> None:
    """Note that the file was just found to have this hash."""
    record = _record_of(path, records)
    try:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps(_state_of(path, sha256)))
    except OSError:
        pass  # a cache that cannot be written only costs the hash next time


def _record_of(path: Path, records: Path) -> Path:
    # Files of the same name in two caches have a record each.
    place = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:12]
    return records / f"{path.name}.{place}.verified"


def _state_of(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
