"""The figures of a benchmark: as a table to read, and as an object for programs. No torch here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .bench_metrics import percentile

if TYPE_CHECKING:
    from .bench_run import BenchResult
    from .bench_scoring import ErrorCount

__all__ = ["as_row", "summary", "table"]

_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("wer", "wer", lambda value: f"{value:.1%}"),
    ("wer_offline", "offline", lambda value: f"{value:.1%}"),
    ("commit_p50", "commit p50", lambda value: f"{value:.2f}"),
    ("commit_p95", "p95", lambda value: f"{value:.2f}"),
    ("commit_max", "max", lambda value: f"{value:.2f}"),
    ("shown_p50", "shown p50", lambda value: f"{value:.2f}"),
    ("shown_p95", "p95", lambda value: f"{value:.2f}"),
    ("erasure", "erased", lambda value: f"{value:.1%}"),
    ("retracted", "retracted", str),
    ("flush_seconds", "flush", lambda value: f"{value:.2f}"),
    ("cpu_per_audio_second", "cpu/s", lambda value: f"{value:.2f}"),
    ("updates", "updates", str),
    ("decoder_steps", "steps", str),
)


def as_row(result: BenchResult, *, texts: bool = False) -> dict[str, Any]:
    """One recording's figures, under the names they have in ``summary``."""
    row = {
        "file": result.file,
        "language": result.language,
        "unit": "character" if result.by_character else "word",
        "audio_seconds": result.audio_seconds,
        "words": len(result.words),
        "words_timed": len(result.commit_delays),
        "wer": result.errors and result.errors.rate,
        "wer_offline": result.errors_offline and result.errors_offline.rate,
        **_figures([result]),
        "flush_seconds": result.flush_seconds,
    }
    if texts:
        row |= {"text": result.text, "text_offline": result.text_offline}
    return _rounded(row)


def summary(
    results: Sequence[BenchResult], *, rss_mb: float, texts: bool = False
) -> dict[str, Any]:
    """The figures of all recordings together.

    Error rates are means over the recordings with words in them, ``..._pooled`` over all words;
    delays are over the words of all recordings, ``flush_seconds`` is the median and ``flush_max``
    the worst. A figure that nothing gives is None.
    """
    flushes = [result.flush_seconds for result in results]
    streamed = [result.errors for result in results]
    offline = [result.errors_offline for result in results]
    return {
        **_rounded(
            {
                "clips": len(results),
                "audio_seconds": sum(result.audio_seconds for result in results),
                "words": sum(len(result.words) for result in results),
                "words_timed": sum(len(result.commit_delays) for result in results),
                "wer": _mean_rate(streamed),
                "wer_offline": _mean_rate(offline),
                "wer_pooled": _pooled_rate(streamed),
                "wer_offline_pooled": _pooled_rate(offline),
                **_figures(results),
                "flush_seconds": statistics.median(flushes),
                "flush_max": max(flushes),
                "rss_mb": rss_mb,
            }
        ),
        "files": [as_row(result, texts=texts) for result in results],
    }


def _figures(results: Sequence[BenchResult]) -> dict[str, Any]:
    commits = [delay for result in results for delay in result.commit_delays]
    shown = [delay for result in results for delay in result.shown_delays]
    cpu = sum(result.cpu_seconds for result in results)
    steps = sum(result.decoder_steps for result in results)
    seconds = sum(result.audio_seconds for result in results)
    figures: dict[str, Any] = {
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
        "decoder_steps": steps,
    }
    plain = [(result, result.plain) for result in results if result.plain is not None]
    if plain:
        plain_cpu = sum(run.cpu_seconds for _, run in plain)
        plain_steps = sum(run.decoder_steps for _, run in plain)
        figures |= {
            "plain_decoder_steps": plain_steps,
            "plain_cpu_per_audio_second": plain_cpu / seconds if seconds else None,
            "decoder_steps_ratio": steps / plain_steps if plain_steps else None,
            "cpu_ratio": cpu / plain_cpu if plain_cpu else None,
            "plain_differs": sum(1 for result, run in plain if run.text != result.text),
        }
    return figures


def _share(erasures: Iterable[tuple[int, int]]) -> float:
    pairs = list(erasures)
    shown = sum(shown for shown, _ in pairs)
    return sum(changed for _, changed in pairs) / shown if shown else 0.0


def _mean_rate(counts: Sequence[ErrorCount | None]) -> float | None:
    rates = [count.rate for count in counts if count is not None and count.rate is not None]
    return statistics.mean(rates) if rates else None


def _pooled_rate(counts: Sequence[ErrorCount | None]) -> float | None:
    known = [count for count in counts if count is not None]
    length = sum(count.length for count in known)
    return sum(count.errors for count in known) / length if length else None


def _rounded(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in figures.items()
    }


def table(figures: dict[str, Any]) -> str:
    """``summary`` as lines: one a file, one for all of them, and what concerns them together."""
    rows = [(row["file"], row) for row in figures["files"]]
    if len(rows) > 1:
        rows.append(("all", figures))
    width = max(len("file"), *(len(name) for name, _ in rows))
    heads = [head for _, head, _ in _COLUMNS]
    lines = ["  ".join([f"{'file':<{width}}", *(f"{head:>{max(7, len(head))}}" for head in heads)])]
    for name, row in rows:
        cells = [
            f"{'-' if row[key] is None else show(row[key]):>{max(7, len(head))}}"
            for key, head, show in _COLUMNS
        ]
        lines.append("  ".join([f"{name:<{width}}", *cells]))
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
