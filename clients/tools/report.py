"""Figures of ``bench`` and ``load``: as objects for programs, and as tables to read.

Percentiles are interpolated linearly between the two nearest values, as numpy does by default.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import UsageError
from .load_plan import join_references

if TYPE_CHECKING:
    from .bench_run import BenchResult
    from .load_plan import StreamPlan
    from .load_run import LoadRun
    from .load_worker import StreamOutcome
    from .scoring import ErrorCount

__all__ = [
    "bench_figures",
    "bench_table",
    "count_reasons",
    "keeps_up",
    "load_figures",
    "load_table",
    "percentile",
    "require_extras",
    "server_line",
    "write_report",
]


class _Column(NamedTuple):
    key: str  # of a row of figures
    title: str
    show: Callable[[Any], str]


_SECONDS: Callable[[Any], str] = "{:.2f}".format
_PERCENT: Callable[[Any], str] = "{:.1%}".format
_LEAST_WIDTH = 7

_BENCH_COLUMNS = (
    _Column("wer", "wer", _PERCENT),
    _Column("wer_offline", "offline", _PERCENT),
    _Column("commit_p50", "commit p50", _SECONDS),
    _Column("commit_p95", "p95", _SECONDS),
    _Column("commit_max", "max", _SECONDS),
    _Column("shown_p50", "shown p50", _SECONDS),
    _Column("shown_p95", "p95", _SECONDS),
    _Column("erasure", "erased", _PERCENT),
    _Column("retracted", "retracted", str),
    _Column("flush_seconds", "flush", _SECONDS),
    _Column("cpu_per_audio_second", "cpu/s", _SECONDS),
    _Column("updates", "updates", str),
    _Column("decoder_steps", "steps", str),
)
_LOAD_COLUMNS = (
    _Column("words", "words", str),
    _Column("commit_p50", "commit p50", _SECONDS),
    _Column("commit_p95", "p95", _SECONDS),
    _Column("commit_p99", "p99", _SECONDS),
    _Column("lag_max", "lag max", _SECONDS),
    _Column("refused", "refused", str),
    _Column("failed", "failed", str),
    _Column("wer", "wer", _PERCENT),
    _Column("cpu_per_audio_second", "cpu/s", _SECONDS),
)


# Both


def require_extras(*, picture: bool) -> None:
    """Check that what the tools need beside the package is installed.

    Raises:
        UsageError: jiwer is missing, or matplotlib where a picture was asked for.
    """
    for module, needed in (("jiwer", True), ("matplotlib", picture)):
        if needed and find_spec(module) is None:
            raise UsageError(
                f"{module} is not installed: pip install 'whisper-stream[bench]' brings it"
            )


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return the value that ``percent`` of ``values`` do not exceed; None where there are no values."""
    return float(np.percentile(values, percent)) if len(values) else None


def write_report(figures: Mapping[str, Any], lines: str, *, as_json: bool) -> None:
    """Print ``lines``; with ``as_json`` to stderr, and ``figures`` as one JSON line to stdout."""
    if as_json:
        sys.stderr.write(lines)
        sys.stderr.flush()
        sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(lines)


def _table(
    rows: Sequence[tuple[str, Mapping[str, Any]]], head: str, columns: Sequence[_Column]
) -> list[str]:
    """Return a line of titles and a line for each row: its name, then its figures."""
    width = max(len(head), *(len(name) for name, _ in rows))
    widths = [max(_LEAST_WIDTH, len(column.title)) for column in columns]
    cells = [[column.title for column in columns]] + [
        ["-" if row[column.key] is None else column.show(row[column.key]) for column in columns]
        for _, row in rows
    ]
    names = [head, *(name for name, _ in rows)]
    return [
        "  ".join([f"{name:<{width}}", *(f"{c:>{w}}" for c, w in zip(line, widths, strict=True))])
        for name, line in zip(names, cells, strict=True)
    ]


def _round(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def _pooled_rate(counts: Iterable[ErrorCount | None]) -> float | None:
    known = [count for count in counts if count is not None]
    length = sum(count.length for count in known)
    return sum(count.errors for count in known) / length if length else None


# bench


def bench_figures(
    results: Sequence[BenchResult], *, rss_mb: float, texts: bool = False
) -> dict[str, Any]:
    """Return the figures of all recordings together, and those of each one under ``files``.

    Error rates are means over the recordings with words in them, ``..._pooled`` over all words;
    delays are over the words of all recordings, ``flush_seconds`` is the median and ``flush_max``
    the worst. A figure that nothing gives is None.

    Args:
        rss_mb: most memory while the streams ran, in megabytes.
        texts: add the texts of each recording.
    """
    flushes = [result.flush_seconds for result in results]
    streamed = [result.errors for result in results]
    offline = [result.errors_offline for result in results]
    return {
        **_round(
            {
                "clips": len(results),
                "audio_seconds": sum(result.audio_seconds for result in results),
                "words": sum(len(result.words) for result in results),
                "words_timed": sum(len(result.commit_delays) for result in results),
                "wer": _mean_rate(streamed),
                "wer_offline": _mean_rate(offline),
                "wer_pooled": _pooled_rate(streamed),
                "wer_offline_pooled": _pooled_rate(offline),
                **_stream_figures(results),
                "flush_seconds": statistics.median(flushes),
                "flush_max": max(flushes),
                "rss_mb": rss_mb,
            }
        ),
        "files": [_bench_row(result, texts=texts) for result in results],
    }


def bench_table(figures: Mapping[str, Any]) -> str:
    """Return ``bench_figures`` as lines: one a file, one for all of them, and what concerns them together."""
    rows = [(row["file"], row) for row in figures["files"]]
    if len(rows) > 1:
        rows.append(("all", figures))
    lines = _table(rows, "file", _BENCH_COLUMNS)
    lines.append(f"memory while streaming: {figures['rss_mb']:.0f} MB at most")
    if figures["wer_pooled"] is not None:
        lines.append(
            f"over all words: {figures['wer_pooled']:.1%} streamed, "
            f"{figures['wer_offline_pooled']:.1%} offline"
        )
    if "plain_decoder_steps" in figures:
        lines.append(
            f"without drafts: {figures['plain_decoder_steps']} decoder steps and "
            f"{figures['plain_cpu_per_audio_second']:.2f} cpu/s; with them "
            f"{figures['decoder_steps_ratio'] or 0:.0%} of the steps and "
            f"{figures['cpu_ratio'] or 0:.0%} of the time; "
            f"committed words differ in {figures['plain_differs']} of {len(figures['files'])} files"
        )
    return "\n".join(lines) + "\n"


def _bench_row(result: BenchResult, *, texts: bool) -> dict[str, Any]:
    row = {
        "file": result.file,
        "language": result.language,
        "unit": "character" if result.by_character else "word",
        "audio_seconds": result.audio_seconds,
        "words": len(result.words),
        "words_timed": len(result.commit_delays),
        "wer": result.errors and result.errors.rate,
        "wer_offline": result.errors_offline and result.errors_offline.rate,
        **_stream_figures([result]),
        "flush_seconds": result.flush_seconds,
    }
    if texts:
        row |= {"text": result.text, "text_offline": result.text_offline}
    return _round(row)


def _stream_figures(results: Sequence[BenchResult]) -> dict[str, Any]:
    commits = [delay for result in results for delay in result.commit_delays]
    shown = [delay for result in results for delay in result.shown_delays]
    cpu = sum(result.cpu_seconds for result in results)
    seconds = sum(result.audio_seconds for result in results)
    return {
        "commit_p50": percentile(commits, 50),
        "commit_p95": percentile(commits, 95),
        "commit_max": max(commits, default=None),
        "shown_p50": percentile(shown, 50),
        "shown_p95": percentile(shown, 95),
        "shown_max": max(shown, default=None),
        "erasure": _share(result.erasure for result in results),
        "erasure_exact": _share(result.erasure_exact for result in results),
        "retracted": sum(result.retracted for result in results),
        "cpu_per_audio_second": cpu / seconds if seconds else None,
        "updates": sum(result.updates for result in results),
        "decoder_steps": sum(result.decoder_steps for result in results),
        **_savings(results),
    }


def _savings(results: Sequence[BenchResult]) -> dict[str, Any]:
    """Return what drafts save, where the streams also ran without them."""
    plain = [(result, result.plain) for result in results if result.plain is not None]
    if not plain:
        return {}
    cpu = sum(result.cpu_seconds for result in results)
    steps = sum(result.decoder_steps for result in results)
    seconds = sum(result.audio_seconds for result in results)
    plain_cpu = sum(run.cpu_seconds for _, run in plain)
    plain_steps = sum(run.decoder_steps for _, run in plain)
    return {
        "plain_decoder_steps": plain_steps,
        "plain_cpu_per_audio_second": plain_cpu / seconds if seconds else None,
        "decoder_steps_ratio": steps / plain_steps if plain_steps else None,
        "cpu_ratio": cpu / plain_cpu if plain_cpu else None,
        "plain_differs": sum(1 for result, run in plain if run.text != result.text),
    }


def _share(erasures: Iterable[tuple[int, int]]) -> float:
    pairs = list(erasures)
    shown = sum(shown for shown, _ in pairs)
    return sum(changed for _, changed in pairs) / shown if shown else 0.0


def _mean_rate(counts: Sequence[ErrorCount | None]) -> float | None:
    rates = [count.rate for count in counts if count is not None and count.rate is not None]
    return statistics.mean(rates) if rates else None


# load


def load_figures(run: LoadRun, count_errors: Callable[..., ErrorCount | None]) -> dict[str, Any]:
    """Return the figures of one run in seconds and ratios, and those of each stream under ``each``.

    ``wer`` is over the words of all streams together that were played to their end. A figure that
    nothing gives is None.

    Args:
        count_errors: counts the errors of a stream's ``(references, text, language)``.
    """
    pairs = list(zip(run.plans, run.outcomes, strict=True))
    errors = [_errors(plan, outcome, count_errors) for plan, outcome in pairs]
    audio = sum(outcome.audio_seconds for outcome in run.outcomes)
    cpu = None if run.cpu_seconds is None or not audio else run.cpu_seconds / audio
    played = sum(outcome.refused is None for outcome in run.outcomes)
    memory = None if run.memory_growth is None or not played else run.memory_growth // played
    delays = [delay for outcome in run.outcomes for delay in outcome.delays]
    return _round(
        {
            "streams": len(run.outcomes),
            "audio_seconds": audio,
            **_delays(delays),
            "lag_max": max(outcome.lag_max for outcome in run.outcomes),
            "late_max": max(outcome.late_max for outcome in run.outcomes),
            "refused": sum(outcome.refused is not None for outcome in run.outcomes),
            "failed": sum(outcome.failed is not None for outcome in run.outcomes),
            "wer": _pooled_rate(errors),
            "cpu_per_audio_second": cpu,
            "memory_per_stream": memory,
            "gpu_utilization": run.gpu_utilization,
            "gpu_memory": run.gpu_memory,
            "player_cpu_per_audio_second": run.player_cpu_seconds / audio if audio else None,
            "reasons": dict(count_reasons(run.outcomes)),
        }
    ) | {
        "each": [
            _load_row(plan, one, found) for (plan, one), found in zip(pairs, errors, strict=True)
        ]
    }


def load_table(rows: Sequence[tuple[str, Mapping[str, Any]]], head: str) -> str:
    """Return lines of load figures, each under its name; ``head`` is the title over the names."""
    return "\n".join(_table(rows, head, _LOAD_COLUMNS)) + "\n"


def keeps_up(figures: Mapping[str, Any], bound: float) -> bool:
    """Return whether p95 of the commit delay is within ``bound`` seconds, and no stream was left out."""
    p95 = figures["commit_p95"]
    return p95 is not None and p95 <= bound and not figures["refused"] and not figures["failed"]


def count_reasons(outcomes: Sequence[StreamOutcome]) -> Counter[str]:
    """Return how many streams were refused or failed, by reason."""
    found = (outcome.refused or outcome.failed for outcome in outcomes)
    return Counter(reason for reason in found if reason is not None)


def server_line(figures: Mapping[str, Any]) -> str:
    """Return a line on the server's memory and GPU; empty where the server does not tell."""
    parts = []
    if figures["memory_per_stream"] is not None:
        parts.append(f"{figures['memory_per_stream'] / 2**20:.2f} MiB of memory a stream")
    if figures["gpu_utilization"] is not None:
        parts.append(f"GPU busy {figures['gpu_utilization']:.0%} of the time")
    if figures["gpu_memory"] is not None:
        parts.append(f"{figures['gpu_memory'] / 2**30:.2f} GiB of its memory")
    return f"server: {', '.join(parts)}\n" if parts else ""


def _load_row(
    plan: StreamPlan, outcome: StreamOutcome, errors: ErrorCount | None
) -> dict[str, Any]:
    return _round(
        {
            "stream": plan.stream,
            "files": [clip.name for clip in plan.clips],
            "language": plan.language,
            "audio_seconds": outcome.audio_seconds,
            **_delays(outcome.delays),
            "lag_max": outcome.lag_max,
            "refused": int(outcome.refused is not None),
            "failed": int(outcome.failed is not None),
            "wer": _pooled_rate([errors]),
            "cpu_per_audio_second": None,  # the server's, of all streams together
        }
    )


def _delays(delays: Sequence[float]) -> dict[str, Any]:
    named = {f"commit_p{percent}": percentile(delays, percent) for percent in (50, 95, 99)}
    return {"words": len(delays), **named}


def _errors(
    plan: StreamPlan, outcome: StreamOutcome, count_errors: Callable[..., ErrorCount | None]
) -> ErrorCount | None:
    if outcome.refused is not None or outcome.failed is not None:
        return None
    return count_errors(join_references(plan.clips), outcome.text, plan.language)
