"""The transcript that a client keeps while messages come in, and the files that clients write.

A file is found to be writable before any work begins, and is replaced whole or not at all.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from ...server.protocol import captions
from ...server.protocol import messages as wire
from ..errors import OutputError

__all__ = ["OutputFile", "TextFile", "LiveTranscript"]


class TextFile:
    """A file that a flag names. Nothing there is touched before :meth:`write`.

    Args:
        path: the file.
        flag: the flag that named it, for messages.

    Raises:
        OutputError: the file could not be written.
    """

    def __init__(self, path: Path, *, flag: str) -> None:
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


class LiveTranscript:
    """A transcript that grows: closed segments, the committed words after them, and the words that may change.

    Attributes:
        segments: the closed ones.
        open_words: committed words whose segment is not closed yet.
        tail: the words of the latest partial, which may still change.
        language: ISO code; empty while it is not known.
    """

    def __init__(self) -> None:
        self.segments: list[wire.Segment] = []
        self.open_words: list[wire.Word] = []
        self.tail: tuple[wire.Word, ...] = ()
        self.language = ""

    def add(self, message: wire.ServerMessage) -> None:
        """Take in a message of the server."""
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

    def open_segment(self) -> wire.Segment | None:
        """Return the words that no segment closed as one; None if there are none."""
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
        """Return all that is committed; words that no segment closed are the last segment."""
        last = self.open_segment()
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
