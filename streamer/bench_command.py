"""``whisper-stream bench``: how good, how late and how costly streams of given recordings are.

Nothing slow is loaded before the flags are known to be right.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from .. import WhisperStreamError
from ..model.errors import ModelError, UsageError
from .bench_clips import BenchClip
from .bench_flags import BenchOptions, parse_options

if TYPE_CHECKING:
    from ..model.whisper import Whisper
    from .bench import BenchResult

__all__ = ["main"]

_Result = TypeVar("_Result")


def main(argv: Sequence[str]) -> int:
    """Run the command. 0: done. 1: some recording could not be measured, or a word was taken back.

    Raises:
        UsageError: a flag makes no sense, or an extra is not installed.
        WhisperStreamError: the model cannot be loaded.
    """
    try:
        options = parse_options(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    _check_extras(options)
    from ..model.threads import wait_politely

    wait_politely()
    model = _load(options)
    clips = _understood(options, english_only=not model.is_multilingual)
    return _run(options, model, clips)


def _check_extras(options: BenchOptions) -> None:
    for module, needed in (("jiwer", True), ("matplotlib", options.picture is not None)):
        if needed and find_spec(module) is None:
            raise UsageError(
                f"{module} is not installed: pip install 'whisper-stream[bench]' brings it"
            )


def _load(options: BenchOptions) -> Whisper:
    from ..model.locate import locate

    locate(options.model)

    import torch

    from ..model.compute import resolve_compute_type
    from ..model.loading import load_model, pick_device

    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        resolve_compute_type(options.compute_type, pick_device(options.device))
    except ModelError as error:
        raise UsageError(str(error)) from error
    return load_model(options.model, device=options.device, compute_type=options.compute_type)


def _understood(options: BenchOptions, *, english_only: bool) -> list[BenchClip]:
    """The recordings whose language the model knows, as far as it is told."""
    languages = {None, "en", "zxx"}  # not known, English, nothing said
    clips = [clip for clip in options.clips if not english_only or clip.language in languages]
    if not clips:
        raise UsageError(f"{options.model} knows only English: choose another --model")
    if left_out := len(options.clips) - len(clips):
        _say("notice", f"recordings not in English, left out: {left_out}")
    return clips


def _run(options: BenchOptions, model: Whisper, clips: Sequence[BenchClip]) -> int:
    from .bench import Bench, score
    from .bench_report import summary
    from .bench_runs import PeakMemory

    bench = Bench(model, clock=options.clock, language=options.language, options=options.stream)
    memory = PeakMemory()
    tried = [(clip, _attempt(partial(bench.stream, clip))) for clip in _told(clips, "stream")]
    rss_mb, load = memory.megabytes(), os.getloadavg()[0]
    runs = [(clip, run) for clip, run in tried if run is not None]
    if not runs:
        return 1
    plain = [
        bench.plain(clip, run) if options.plain else None for clip, run in _told(runs, "again")
    ]
    results = [
        score(bench, clip, run, again)
        for (clip, run), again in _told(list(zip(runs, plain, strict=True)), "whole file")
    ]
    figures = summary(results, rss_mb=rss_mb, texts=options.texts)
    figures |= {"model": options.model, "clock": options.clock, "load_average": round(load, 2)}
    _report(options, results, figures)
    broken = figures["retracted"] or figures.get("plain_differs", 0)
    return 1 if broken or len(runs) < len(clips) else 0


def _report(options: BenchOptions, results: Sequence[BenchResult], figures: dict[str, Any]) -> None:
    from .bench_report import table

    if options.picture is not None:
        from .bench_plot import draw

        draw(results, options.picture)
    if options.json:
        sys.stderr.write(table(figures))
        sys.stderr.flush()
        sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
        return
    sys.stdout.write(table(figures))
    if options.texts:
        sys.stdout.write(_differing(results))


def _told(items: Sequence[_Result], what: str) -> Iterator[_Result]:
    """The same items; on a terminal, a line says how far the work is."""
    shown = sys.stderr.isatty()
    for number, item in enumerate(items, start=1):
        if shown:
            sys.stderr.write(f"\r\x1b[K{what} {number} of {len(items)}")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write("\r\x1b[K")


def _attempt(work: Callable[[], _Result]) -> _Result | None:
    """What goes wrong with one recording is told, and is no matter of the others."""
    try:
        return work()
    except WhisperStreamError as error:
        _say("error", str(error))
        return None


def _say(kind: str, text: str) -> None:
    sys.stderr.write(f"whisper-stream: {kind}: {' '.join(text.split())}\n")


def _differing(results: Sequence[BenchResult]) -> str:
    return "".join(
        f"{result.file}\n  streamed: {result.text}\n  offline:  {result.text_offline}\n"
        for result in results
        if result.text != result.text_offline
    )
