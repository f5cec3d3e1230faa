"""The figures of a load: as a table to read, and as an object for programs. No I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .load_plan import join_references

if TYPE_CHECKING:
    from .load_plan import StreamPlan
    from .load_run import LoadRun
    from .load_scoring import Errors
    from .load_worker import StreamOutcome

__all__ = ["figures_of", "keeps_up", "percentile", "reasons", "table", "use_of"]

_SECONDS: Callable[[Any], str] = "{:.2f}".format
_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("words", "words", str),
    ("commit_p50", "commit p50", _SECONDS),
    ("commit_p95", "p95", _SECONDS),
    ("commit_p99", "p99", _SECONDS),
    ("lag_max", "lag max", _SECONDS),
    ("refused", "refused", str),
    ("failed", "failed", str),
    ("wer", "wer", "{:.1%}".format),
    ("cpu_per_audio_second", "cpu/s", _SECONDS),
)


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Interpolated linearly; None of no values."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def figures_of(run: LoadRun, score: Callable[..., Errors | None]) -> dict[str, Any]:
    """The figures of one run; what nothing gives is None. Seconds and ratios.

    ``score(references, text, language)`` counts errors. ``wer`` is over the words of all streams
    together that were played to their end.
    """
    pairs = list(zip(run.plans, run.outcomes, strict=True))
    errors = [_errors(plan, outcome, score) for plan, outcome in pairs]
    audio = sum(outcome.audio_seconds for outcome in run.outcomes)
    cpu = None if run.cpu_seconds is None or not audio else run.cpu_seconds / audio
    played = sum(outcome.refused is None for outcome in run.outcomes)
    memory = None if run.memory_growth is None or not played else run.memory_growth // played
    delays = [delay for outcome in run.outcomes for delay in outcome.delays]
    return _rounded(
        {
            "streams": len(run.outcomes),
            "audio_seconds": audio,
            **_delays(delays),
            "lag_max": max(outcome.lag_max for outcome in run.outcomes),
            "late_max": max(outcome.late_max for outcome in run.outcomes),
            "refused": sum(outcome.refused is not None for outcome in run.outcomes),
            "failed": sum(outcome.failed is not None for outcome in run.outcomes),
            "wer": _rate([each for each in errors if each is not None]),
            "cpu_per_audio_second": cpu,
            "memory_per_stream": memory,
            "gpu_utilization": run.gpu_utilization,
            "gpu_memory": run.gpu_memory,
            "player_cpu_per_audio_second": run.player_cpu_seconds / audio if audio else None,
            "reasons": dict(reasons(run.outcomes)),
        }
    ) | {"each": [_row(plan, one, found) for (plan, one), found in zip(pairs, errors, strict=True)]}


def keeps_up(figures: Mapping[str, Any], bound: float) -> bool:
    """Whether p95 of the commit delay is within ``bound`` seconds, and no stream was left out."""
    p95 = figures["commit_p95"]
    return p95 is not None and p95 <= bound and not figures["refused"] and not figures["failed"]


def reasons(outcomes: Sequence[StreamOutcome]) -> Counter[str]:
    """How many streams were refused or failed for which reason."""
    found = (outcome.refused or outcome.failed for outcome in outcomes)
    return Counter(reason for reason in found if reason is not None)


def table(rows: Sequence[tuple[str, Mapping[str, Any]]], head: str) -> str:
    """Lines of figures, each under its name; ``head`` is over the names."""
    width = max(len(head), *(len(name) for name, _ in rows))
    heads = [title for _, title, _ in _COLUMNS]
    lines = [
        "  ".join([f"{head:<{width}}", *(f"{title:>{max(6, len(title))}}" for title in heads)])
    ]
    for name, row in rows:
        cells = [
            f"{'-' if row[key] is None else show(row[key]):>{max(6, len(title))}}"
            for key, title, show in _COLUMNS
        ]
        lines.append("  ".join([f"{name:<{width}}", *cells]))
    return "\n".join(lines) + "\n"


def use_of(figures: Mapping[str, Any]) -> str:
    """A line on what the server used besides processor time; empty where it does not tell."""
    parts = []
    if figures["memory_per_stream"] is not None:
        parts.append(f"{figures['memory_per_stream'] / 2**20:.2f} MiB of memory a stream")
    if figures["gpu_utilization"] is not None:
        parts.append(f"GPU busy {figures['gpu_utilization']:.0%} of the time")
    if figures["gpu_memory"] is not None:
        parts.append(f"{figures['gpu_memory'] / 2**30:.2f} GiB of its memory")
    return f"server: {', '.join(parts)}\n" if parts else ""


def _row(plan: StreamPlan, outcome: StreamOutcome, errors: Errors | None) -> dict[str, Any]:
    return _rounded(
        {
            "stream": plan.stream,
            "files": [Path(clip.path).name for clip in plan.clips],
            "language": plan.language,
            "audio_seconds": outcome.audio_seconds,
            **_delays(outcome.delays),
            "lag_max": outcome.lag_max,
            "refused": int(outcome.refused is not None),
            "failed": int(outcome.failed is not None),
            "wer": _rate([] if errors is None else [errors]),
            "cpu_per_audio_second": None,  # the server's, of all streams together
        }
    )


def _delays(delays: Sequence[float]) -> dict[str, Any]:
    named = {f"commit_p{percent}": percentile(delays, percent) for percent in (50, 95, 99)}
    return {"words": len(delays), **named}


def _errors(
    plan: StreamPlan, outcome: StreamOutcome, score: Callable[..., Errors | None]
) -> Errors | None:
    if outcome.refused is not None or outcome.failed is not None:
        return None
    return score(join_references(plan.clips), outcome.text, plan.language)


def _rate(counts: Sequence[Errors]) -> float | None:
    length = sum(count.length for count in counts)
    return sum(count.errors for count in counts) / length if length else None


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }
