"""The choice of a renderer for stdout and stderr, and the lines printed beside the captions."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import TextIOWrapper

from rich.console import Console
from rich.text import Text

from .render import JsonRenderer, LiveRenderer, PlainRenderer, ProgressBar, Renderer, clean

__all__ = ["Screen", "loading", "open_screen", "print_notice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A renderer and, for a file played without a pace, the bar that shows how far it is."""

    renderer: Renderer
    bar: ProgressBar | None = None


def open_screen(
    *,
    json: bool,
    paced: bool,
    color: bool,
    total: float | None,
    status: Callable[[], Text] | None = None,
) -> Screen:
    """Choose renderer and bar by what stdout and stderr are.

    Args:
        json: print messages instead of captions.
        paced: the audio is sent at the speed of speech, or comes by itself.
        color: captions may have colors.
        total: the length of the audio in seconds.
        status: returns a line for below live captions.
    """
    stdout = Console(no_color=True if not color else None, highlight=False)
    stderr = _stderr(color)
    captions_on_terminal = _drawable(stdout) and not json
    if captions_on_terminal and paced:
        notice = None if _drawable(stderr) else print_notice
        return Screen(renderer=LiveRenderer(stdout, notice, status))
    bar = None
    if not paced and _drawable(stderr):
        # On one terminal, captions and the bar must be drawn by one console.
        bar = ProgressBar(stdout if captions_on_terminal else stderr, total)
    shown = bar.print if bar is not None else print_notice
    if json:
        return Screen(renderer=JsonRenderer(sys.stdout.buffer, shown), bar=bar)
    line = bar.print if bar is not None and captions_on_terminal else _print_line
    return Screen(renderer=PlainRenderer(line, shown), bar=bar)


def loading(text: str, *, color: bool) -> AbstractContextManager[object]:
    """Show that something takes its time, where there is a terminal to show it on."""
    stderr = _stderr(color)
    return stderr.status(text) if _drawable(stderr) else contextlib.nullcontext()


def print_notice(text: str) -> None:
    """Print a line to stderr, without the control characters in it."""
    sys.stderr.write(f"{clean(text)}\n")
    sys.stderr.flush()


def _print_line(text: str) -> None:
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # an ASCII locale shall not end the stream
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _stderr(color: bool) -> Console:
    return Console(stderr=True, no_color=True if not color else None, highlight=False)


def _drawable(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal
