"""A file that a flag names: found to be writable before any work, and replaced whole or not at all.

The transcript that a client keeps while messages come in, and the file it is written to.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ...server.protocol import captions
from ...server.protocol import messages as wire
from ..errors import OutputError

__all__ = ["OutputFile", "TextFile", "Transcript"]


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


class Transcript:
    """Closed segments, the committed words after them, and the unstable tail after those."""

    def __init__(self) -> None:
        self.segments: list[wire.Segment] = []
        self.open_words: list[wire.Word] = []  # committed, but their segment is not closed yet
        self.tail: tuple[wire.Word, ...] = ()
        self.language = ""

    def add(self, message: wire.ServerMessage) -> None:
        match message:
            case wire.Partial():
                self.tail = message.words
            case wire.Commit():
                self.open_words.extend(message.words)
                self.tail = ()  # the server sends the tail that is left, if any
            case wire.Segment():
                self.segments.append(message)
                del self.open_words[: len(message.words)]
            case wire.Language():
                self.language = message.language
            case wire.Ready(language=str(language)):
                self.language = language

    def unclosed(self) -> wire.Segment | None:
        """The committed words that no segment closed, as when the connection was lost."""
        if not self.open_words:
            return None
        return wire.Segment(
            id=self.segments[-1].id + 1 if self.segments else 0,
            text="".join(word.text for word in self.open_words),
            start=self.open_words[0].start,
            end=self.open_words[-1].end,
            language=self.language,
            words=tuple(self.open_words),
            avg_logprob=0.0,
            no_speech_prob=0.0,
            compression_ratio=1.0,
            temperature=0.0,
        )

    def complete(self) -> tuple[wire.Segment, ...]:
        """Everything committed, with words that no segment closed as one more segment."""
        last = self.unclosed()
        return (*self.segments, last) if last is not None else tuple(self.segments)


class OutputFile:
    """The file for the transcript. Nothing there is touched before :meth:`write`.

    Raises:
        OutputError: the extension names no format, or the file could not be written.
    """

    def __init__(self, path: Path) -> None:
        self.format = _format(path)
        self._file = TextFile(path, flag="--output")

    def write(self, segments: tuple[wire.Segment, ...]) -> None:
        """Replace the file with the transcript, whole or not at all."""
        self._file.write(captions.render(segments, self.format))


def _format(path: Path) -> captions.CaptionFormat:
    for name in captions.FORMATS:
        if path.suffix.lower() == f".{name}":
            return name
    known = ", ".join(f".{name}" for name in captions.FORMATS)
    raise OutputError(f"--output {path}: the extension must be one of {known}")
