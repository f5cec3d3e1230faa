"""A file that a flag names: found to be writable before any work, and replaced whole or not at all."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from .errors import OutputError

__all__ = ["TextFile"]


class TextFile:
    """Nothing there is touched before :meth:`write`.

    Raises:
        OutputError: the file could not be written.
    """

    def __init__(self, path: Path, *, flag: str) -> None:
        """``flag`` is the one that named it, for messages."""
        self._name = f"{flag} {path}"
        self._target = Path(os.path.realpath(path))  # a symbolic link stays one
        try:
            mode = self._target.stat().st_mode if self._target.exists() else None
            if mode is not None and stat.S_ISDIR(mode):
                raise OutputError(f"{self._name}: is a directory; name a file in it")
            if mode is not None and not os.access(self._target, os.W_OK):
                raise OutputError(f"{self._name}: may not be written; choose another file")
            with tempfile.NamedTemporaryFile(dir=self._target.parent, prefix=".whisper-stream-"):
                pass
        except (OSError, ValueError) as error:
            raise self._error(error) from None
        self._mode = stat.S_IMODE(mode) if mode is not None else 0o666 & ~_umask()

    def write(self, text: str) -> None:
        """Replace the file, whole or not at all."""
        temporary: str | None = None
        try:
            with tempfile.NamedTemporaryFile(
                dir=self._target.parent, prefix=".whisper-stream-", delete=False
            ) as file:
                temporary = file.name
                file.write(text.encode())
                os.fchmod(file.fileno(), self._mode)
            os.replace(temporary, self._target)
        except OSError as error:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)
            raise self._error(error) from None

    def _error(self, error: Exception) -> OutputError:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        return OutputError(f"{self._name}: cannot be written: {reason}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
