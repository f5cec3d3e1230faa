"""The transcript that a client keeps while messages come in, and the file it is written to."""

from __future__ import annotations

from pathlib import Path

from ..server import captions, wire
from .errors import OutputError
from .text_file import TextFile

__all__ = ["OutputFile", "Transcript"]


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
