"""Pictures of delays: each word of a benchmark, and all words of a load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from .bench_run import BenchResult

__all__ = ["draw_bench", "draw_load"]

_BLUE, _ORANGE, _RED, _GREY = "#1f5fa8", "#e08a1e", "#b03a3a", "#999999"
_PERCENTILES = (
    ("commit_p50", "p50", _BLUE),
    ("commit_p95", "p95", _ORANGE),
    ("commit_p99", "p99", _RED),
)


def draw_bench(results: Sequence[BenchResult], path: Path) -> None:
    """Draw where in the audio each word ends, and when it was shown and committed; write a PNG.

    Several recordings follow each other, with a line where each begins.

    Raises:
        OSError: ``path`` cannot be written.
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
    times.plot([0, offset], [0, offset], color=_GREY, linewidth=1, label="spoken")
    delays.axhline(0.0, color=_GREY, linewidth=1)
    for name, color, moments in (
        ("first shown", _ORANGE, shown),
        ("committed", _BLUE, committed),
    ):
        times.plot(ends, moments, ".", color=color, markersize=4, label=name)
        waits = [moment - end for moment, end in zip(moments, ends, strict=True)]
        delays.plot(ends, waits, ".", color=color, markersize=4, label=name)
    for axes in (times, delays):
        for begin in begins[1:]:
            axes.axvline(begin, color=_GREY, linewidth=0.4)
        axes.grid(alpha=0.3)
    title = (
        results[0].file if len(results) == 1 else f"{len(results)} recordings, one after another"
    )
    times.set(title=title, ylabel="time since the start (s)")
    delays.set(xlabel="end of the word in the audio (s)", ylabel="delay (s)")
    times.legend(loc="upper left")
    figure.savefig(path, format="png")


def draw_load(
    runs: Sequence[tuple[Mapping[str, Any], Sequence[float]]], bound: float, path: Path
) -> None:
    """Draw which share of the words was committed within what time, and how more streams change it.

    Args:
        runs: the figures of each run, with the commit delays of its words in seconds.
        bound: seconds, drawn as a line.
        path: the PNG to write.

    Raises:
        OSError: ``path`` cannot be written.
    """
    runs = sorted(runs, key=lambda run: int(run[0]["streams"]))
    figure = Figure(figsize=(11, 4.5), dpi=100, layout="constrained")
    panels = list(figure.subplots(1, 2 if len(runs) > 1 else 1, squeeze=False)[0])
    shares = panels[0]
    for figures, delays in runs:
        ordered = sorted(delays)
        parts = [(place + 1) / len(ordered) for place in range(len(ordered))]
        shares.step(ordered, parts, where="post", label=f"{figures['streams']} streams")
    shares.set(xlabel="commit delay (s)", ylabel="share of words", ylim=(0, 1))
    shares.axvline(bound, color=_GREY, linestyle="--", label="bound")
    if len(runs) > 1:
        _draw_growth(panels[1], [figures for figures, _ in runs], bound)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, format="png")


def _draw_growth(axes: Axes, rows: Sequence[Mapping[str, Any]], bound: float) -> None:
    for key, label, color in _PERCENTILES:
        known = [(row["streams"], row[key]) for row in rows if row[key] is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], "o-", color=color, label=label)
    axes.axhline(bound, color=_GREY, linestyle="--", label="bound")
    axes.set(xlabel="streams", ylabel="commit delay (s)", ylim=(0, None))
