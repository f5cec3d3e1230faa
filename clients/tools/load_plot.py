"""A picture of a load: how many words were committed within what time, and what more streams do to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["draw"]

_LINES = (
    ("commit_p50", "p50", "#1f5fa8"),
    ("commit_p95", "p95", "#e08a1e"),
    ("commit_p99", "p99", "#b03a3a"),
)

_BOUND = "#999999"


def draw(
    runs: Sequence[tuple[Mapping[str, Any], Sequence[float]]], bound: float, path: Path
) -> None:
    """Writes a PNG of runs, each given by its figures and its words' commit delays.

    Raises OSError when ``path`` cannot be written.
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
    shares.axvline(bound, color=_BOUND, linestyle="--", label="bound")
    if len(runs) > 1:
        _draw_growth(panels[1], [figures for figures, _ in runs], bound)
    for axes in panels:
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, format="png")


def _draw_growth(axes: Axes, rows: Sequence[Mapping[str, Any]], bound: float) -> None:
    for key, label, color in _LINES:
        known = [(row["streams"], row[key]) for row in rows if row[key] is not None]
        axes.plot([x for x, _ in known], [y for _, y in known], "o-", color=color, label=label)
    axes.axhline(bound, color=_BOUND, linestyle="--", label="bound")
    axes.set(xlabel="streams", ylabel="commit delay (s)", ylim=(0, None))
