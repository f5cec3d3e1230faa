"""A picture of delays: where in the audio a word ends, and when it was shown and committed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .bench_run import BenchResult

__all__ = ["draw"]

_COMMITTED, _SHOWN, _SPEECH = "#1f5fa8", "#e08a1e", "#999999"


def draw(results: Sequence[BenchResult], path: Path) -> None:
    """Writes a PNG. Several recordings follow each other, with a line where each begins.

    Raises OSError when ``path`` cannot be written.
    """
    ends: list[float] = []
    shown: list[float] = []
    committed: list[float] = []
    begins: list[float] = []
    offset = 0.0
    for result in results:
        begins.append(offset)
        for word, end in zip(result.words, result.ends, strict=True):
            if end is not None:
                ends.append(offset + end)
                shown.append(offset + word.shown)
                committed.append(offset + word.committed)
        offset += result.audio_seconds
    figure = Figure(figsize=(11, 8), dpi=100, layout="constrained")
    times, delays = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    times.plot([0, offset], [0, offset], color=_SPEECH, linewidth=1, label="spoken")
    delays.axhline(0.0, color=_SPEECH, linewidth=1)
    for name, color, moments in (
        ("first shown", _SHOWN, shown),
        ("committed", _COMMITTED, committed),
    ):
        times.plot(ends, moments, ".", color=color, markersize=4, label=name)
        waits = [moment - end for moment, end in zip(moments, ends, strict=True)]
        delays.plot(ends, waits, ".", color=color, markersize=4, label=name)
    for axes in (times, delays):
        for begin in begins[1:]:
            axes.axvline(begin, color=_SPEECH, linewidth=0.4)
        axes.grid(alpha=0.3)
    title = (
        results[0].file if len(results) == 1 else f"{len(results)} recordings, one after another"
    )
    times.set(title=title, ylabel="time since the start (s)")
    delays.set(xlabel="end of the word in the audio (s)", ylabel="delay (s)")
    times.legend(loc="upper left")
    figure.savefig(path, format="png")
