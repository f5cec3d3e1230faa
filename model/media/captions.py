"""Cues of subtitles, their clock, and their text in SubRip and WebVTT files. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Cue", "cue_block", "format_clock", "milliseconds", "split_clock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """A text that is shown from ``start_ms`` to before ``end_ms``; it may have several lines."""

    start_ms: int
    end_ms: int
    text: str

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines of the text; none for no text."""
        return tuple(self.text.split("\n")) if self.text else ()


def cue_block(
    cue: Cue,
    *,
    number: int | None = None,
    always_include_hours: bool = True,
    decimal_marker: str = ".",
) -> str:
    """Return the block of ``cue`` in a SubRip or WebVTT file, without the empty line after it.

    Args:
        cue: its text is taken as it is.
        number: the first line of the block, which SubRip wants; None leaves it out.
        always_include_hours: as for ``format_clock``.
        decimal_marker: a comma in SubRip, a point in WebVTT.
    """
    start, end = (
        format_clock(time, always_include_hours=always_include_hours, decimal_marker=decimal_marker)
        for time in (cue.start_ms, cue.end_ms)
    )
    head = "" if number is None else f"{number}\n"
    return f"{head}{start} --> {end}\n{cue.text}\n"


def milliseconds(seconds: float) -> int:
    """Round seconds to whole milliseconds."""
    return round(seconds * 1000.0)


def format_clock(
    total: int, *, always_include_hours: bool = False, decimal_marker: str = "."
) -> str:
    """Write a time in milliseconds as ``[HH:]MM:SS.mmm``.

    Raises:
        ValueError: when the time is negative.
    """
    if total < 0:
        raise ValueError(f"a time must not be negative, but is {total} ms")
    hours, minutes, seconds, rest = split_clock(total, 1000)
    front = f"{hours:02d}:" if always_include_hours or hours else ""
    return f"{front}{minutes:02d}:{seconds:02d}{decimal_marker}{rest:03d}"


def split_clock(total: int, per_second: int) -> tuple[int, int, int, int]:
    """Split a time in units of ``1 / per_second`` seconds into hours, minutes, seconds and units."""
    seconds, rest = divmod(total, per_second)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return hours, minutes, seconds, rest
