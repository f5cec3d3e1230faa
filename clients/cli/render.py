"""Renderers of a stream: live captions, plain lines, or JSON lines.

A renderer gets each message after the transcript has. Captions go to stdout; notices go to stderr. No text
of a server reaches a terminal with control characters in it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from typing import BinaryIO, Protocol

import msgspec
from rich.console import Console, ConsoleOptions
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from ...model.media.captions import split_clock
from ...server.protocol import messages as wire
from ..sdk.transcript import LiveTranscript

__all__ = [
    "JsonRenderer",
    "LiveRenderer",
    "PlainRenderer",
    "Printer",
    "ProgressBar",
    "Renderer",
    "clean",
    "clock",
]

_LOST = "whisper-stream: the connection was lost; reconnecting…"
_BACK = "whisper-stream: reconnected; no word is lost"
Printer = Callable[[str], None]  # prints one line, given without its end


class Renderer(Protocol):
    """Shows one stream to a person or a program."""

    def show(self, message: wire.ServerMessage, transcript: LiveTranscript) -> None:
        """Show what the message changed."""

    def notice(self, text: str) -> None:
        """Print one line about the stream, beside its captions."""

    def show_reconnecting(self) -> None:
        """Show that the connection is lost and being made again; a ``resumed`` message ends that."""

    def tick(self) -> None:
        """Redraw what changes with time, such as a level meter."""

    def close(self, transcript: LiveTranscript) -> None:
        """Draw the last state of the screen, with the committed words that no segment closed."""


class JsonRenderer:
    """Prints every message of the server as one JSON line."""

    def __init__(self, stdout: BinaryIO, notice: Printer) -> None:
        self._stdout = stdout
        self._notice = notice

    def show(self, message: wire.ServerMessage, transcript: LiveTranscript) -> None:
        self._stdout.write(msgspec.json.encode(message) + b"\n")
        self._stdout.flush()
        if isinstance(message, wire.Resumed):
            self._notice(_BACK)

    def notice(self, text: str) -> None:
        self._notice(text)

    def show_reconnecting(self) -> None:
        self._notice(_LOST)

    def tick(self) -> None:
        pass

    def close(self, transcript: LiveTranscript) -> None:
        pass


class PlainRenderer:
    """Prints one line for each closed segment, for pipes, files and logs."""

    def __init__(self, line: Printer, notice: Printer) -> None:
        self._line = line
        self._notice = notice

    def show(self, message: wire.ServerMessage, transcript: LiveTranscript) -> None:
        if isinstance(message, wire.Segment):
            self._line(_plain(message))
        elif isinstance(message, wire.Resumed):
            self._notice(_BACK)

    def notice(self, text: str) -> None:
        self._notice(text)

    def show_reconnecting(self) -> None:
        self._notice(_LOST)

    def tick(self) -> None:
        pass

    def close(self, transcript: LiveTranscript) -> None:
        if (rest := transcript.open_segment()) is not None:
            self._line(_plain(rest))


class LiveRenderer:
    """Draws captions on a terminal: closed segments scroll up, the open one is redrawn in place below.

    Committed words stand solid after the time of their segment; the tail that may still change is
    dim and replaced whole. Below stand the status, how far the words are behind, and whether the
    connection is being made again.

    Args:
        console: the terminal.
        notice: prints a notice; default: above the captions.
        status: returns a line for below the captions, such as a level meter.
    """

    def __init__(
        self,
        console: Console,
        notice: Printer | None = None,
        status: Callable[[], Text] | None = None,
    ) -> None:
        self._console = console
        self._status = status
        self._captions = Text()
        self._language = ""
        self._notice = notice if notice is not None else self._print_notice
        self._live = Live(
            console=console,
            auto_refresh=False,  # messages come a few times a second; each redraws once
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lag = 0.0
        self._lost = False
        self._live.start()

    def show(self, message: wire.ServerMessage, transcript: LiveTranscript) -> None:
        match message:
            case wire.Lag():
                self._lag = message.behind
                self._draw(refresh=True)
            case wire.Resumed():
                self._lost = False
                self._draw(refresh=True)
            case wire.Language():
                self._language = message.language
            case wire.Partial() | wire.Commit():
                self._captions = self._open(transcript)
                self._draw(refresh=True)
            case wire.Segment():
                self._captions = self._open(transcript)
                self._draw(refresh=False)
                self._console.print(_caption(message.start, message.text))

    def notice(self, text: str) -> None:
        self._notice(text)

    def show_reconnecting(self) -> None:
        self._lost = True
        self._draw(refresh=True)

    def tick(self) -> None:
        if self._status is not None:
            self._draw(refresh=True)

    def close(self, transcript: LiveTranscript) -> None:
        self._live.update(Text())
        self._live.stop()
        if (rest := transcript.open_segment()) is not None:
            self._console.print(_caption(rest.start, rest.text))

    def _draw(self, *, refresh: bool) -> None:
        status = Text()
        # First, as a narrow terminal has no room for the end of the line.
        if self._lost:
            status.append("reconnecting… ", style="yellow")
        if self._lag > 0:
            status.append(f"{self._lag:.1f} s behind ", style="yellow")
        if self._status is not None:
            status.append_text(self._status())
            status.append(f"  {self._language}" if self._language else "", style="cyan")
        self._live.update(_Bottom(self._captions, status or None), refresh=refresh)

    def _open(self, transcript: LiveTranscript) -> Text:
        words = (*transcript.open_words, *transcript.tail)
        if not words:
            return Text()
        solid = "".join(word.text for word in transcript.open_words)
        return _caption(words[0].start, solid, "".join(word.text for word in transcript.tail))

    def _print_notice(self, text: str) -> None:
        self._console.print(Text(text, style="yellow"), soft_wrap=True)


class ProgressBar:
    """A bar for how much of a file the server has taken, for a file that is played without a pace.

    Args:
        console: the terminal.
        total: the file's length in seconds; None if unknown.
    """

    def __init__(self, console: Console, total: float | None) -> None:
        self.console = console
        self._progress = Progress(
            TextColumn("transcribing"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[at]}"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._task = self._progress.add_task("", total=total, at=clock(0.0))
        self._progress.start()

    def advance(self, seconds: float) -> None:
        """Move the bar: the server holds the audio up to ``seconds``."""
        self._progress.update(self._task, completed=seconds, at=clock(seconds))

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self.console.print(Text(line), soft_wrap=True)

    def close(self) -> None:
        """Remove the bar."""
        self._progress.stop()


class _Bottom:
    """The last lines of a text that fit on the terminal, and a line of status."""

    def __init__(self, text: Text, status: Text | None = None) -> None:
        self.text = text
        self.status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        room = options.size.height - (2 if self.status is not None else 1)
        lines = list(self.text.wrap(console, options.max_width) if self.text else [])
        lines = lines[-max(1, room) :]
        if self.status is not None:
            self.status.truncate(options.max_width - 1, overflow="ellipsis")
            lines.append(self.status)
        yield Text("\n").join(lines)


def clock(seconds: float) -> str:
    """Return a time as ``01:02.50``, with the hours in front from one hour on."""
    hours, minutes, whole, hundredths = split_clock(round(seconds * 100), 100)
    front = f"{hours}:" if hours else ""
    return f"{front}{minutes:02}:{whole:02}.{hundredths:02}"


def _plain(segment: wire.Segment) -> str:
    return f"[{clock(segment.start)} → {clock(segment.end)}] {clean(segment.text)}"


def _caption(start: float, text: str, tail: str = "") -> Text:
    solid = clean(text)
    dim = clean(tail, strip=not solid)
    return Text.assemble((f"[{clock(start)}] ", "cyan"), solid, (dim, "dim"))


def clean(text: str, *, strip: bool = True) -> str:
    """Return ``text`` without control characters, which could drive the terminal."""
    text = "".join(" " if unicodedata.category(char) == "Cc" else char for char in text)
    return text.strip() if strip else text.rstrip()
