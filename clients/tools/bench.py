"""``whisper-stream bench``: how good, how late and how costly streams of given recordings are.

Nothing slow is loaded before the flags are known to be right.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

import msgspec

from ... import WhisperStreamError
from ...model.errors import ModelError
from ...server.flags import FlagParser
from ...streamer.config import StreamConfig
from ..cli.args import add_model_flags
from ..cli.flag_values import language, model_name
from ..cli.main import PROGRAM, print_message
from ..errors import UsageError
from .clips import Clip, read_clips
from .report import bench_figures, bench_table, require_extras, write_report

if TYPE_CHECKING:
    from ...model.whisper.network import Whisper
    from .bench_run import BenchResult

__all__ = ["BenchOptions", "main", "parse_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The recordings to measure, the model and the streams; ``stream`` has fields of StreamConfig."""

    clips: tuple[Clip, ...]
    model: str
    device: str | None
    compute_type: str
    threads: int  # 0: as many as PyTorch takes
    clock: Literal["virtual", "free", "real"]
    language: str | None
    stream: dict[str, Any]  # fields of StreamConfig
    plain: bool
    json: bool
    texts: bool
    picture: Path | None


def parse_options(argv: Sequence[str]) -> BenchOptions:
    """Read the command line, without the command's name.

    Raises:
        UsageError: a flag, or a combination of them, cannot be used.
        SourceError: a manifest or a text cannot be read.
        SystemExit: help was asked for, and printed.
    """
    given = _parser().parse_args(argv)
    if given.plain and given.clock == "real":
        raise UsageError("--plain runs the same schedule twice: use --clock virtual or free")
    stream = dict(given.set)
    try:
        StreamConfig(**stream)
    except (TypeError, ValueError) as error:
        raise UsageError(f"--set: {error}") from error
    if given.picture is not None and not given.picture.absolute().parent.is_dir():
        raise UsageError(f"--picture {given.picture}: its folder does not exist")
    clips = read_clips(
        given.files, reference=given.reference, kinds=given.kind or ("speech",), only=given.only
    )
    if given.language not in (None, "auto"):
        clips = [
            msgspec.structs.replace(clip, language=clip.language or given.language)
            for clip in clips
        ]
    return BenchOptions(
        clips=tuple(clips),
        model=given.model or "tiny.en",
        device=given.model_device,
        compute_type=given.compute_type or "auto",
        threads=given.threads or 0,
        clock=given.clock,
        language=given.language,
        stream=stream,
        plain=given.plain,
        json=given.json,
        texts=given.texts,
        picture=given.picture,
    )


class _BenchParser(FlagParser):
    """Points at ``--set`` for an option of the stream that was given as a flag."""

    def error(self, message: str) -> NoReturn:
        wrong = message.partition("--")[2].replace("=", " ").partition(" ")[0].replace("-", "_")
        if message.startswith("unrecognized") and wrong in StreamConfig.__dataclass_fields__:
            message += f"; write it as --set {wrong}=…"
        super().error(message)


def _parser() -> FlagParser:
    parser = _BenchParser(
        failure=UsageError,
        prog=f"{PROGRAM} bench",
        description="Measure streams of recordings: errors, delays, changes and cost, beside whole-"
        "file decoding by the same model. docs/benchmarks.md says what each figure means.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="recordings, manifest.jsonl files, or folders with one",
    )
    add("--reference", type=Path, metavar="TEXT_FILE", help="what is said in the only recording")
    add(
        "--kind",
        action="append",
        metavar="KIND",
        help="of a manifest's rows, such as longform, or all; may be repeated (default: speech)",
    )
    add(
        "--only",
        action="append",
        default=[],
        metavar="PART",
        help="recordings with this in their file name; may be repeated",
    )
    add_model_flags(add, model_type=model_name)
    add(
        "--language",
        type=_language,
        metavar="CODE",
        help="of the streams; auto: detected (default: what the manifest says, or else auto)",
    )
    add(
        "--clock",
        choices=("virtual", "free", "real"),
        default="virtual",
        help="virtual: audio waits for nothing, updates take the time they take; free: updates take"
        " no time, which shows the policy alone; real: at the speed of speech (default: virtual)",
    )
    add(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help="an option of the stream, such as update_interval=0.5, policy=align-att or"
        " languages=en,de; may be repeated",
    )
    add("--plain", action="store_true", help="also without drafts, to see what they save")
    add(
        "--picture",
        type=Path,
        metavar="PNG",
        help="draw each word's time in the audio and its delay",
    )
    add("--json", action="store_true", help="print one JSON object; the table goes to stderr")
    add("--texts", action="store_true", help="print texts too, in the JSON or where they differ")
    return parser


def _language(text: str) -> str:
    return text if text == "auto" else language(text)


def _setting(text: str) -> tuple[str, Any]:
    """Return the field of StreamConfig and its value from ``name=value``; a tuple has commas between its items."""
    name, equals, value = text.partition("=")
    defaults = {entry.name: entry.default for entry in fields(StreamConfig)}
    if name not in defaults or name == "language":
        known = ", ".join(key for key in defaults if key != "language")
        raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    if not equals:
        raise argparse.ArgumentTypeError(f"{name} has no value: give {name}=VALUE")
    default = defaults[name]
    try:
        if isinstance(default, tuple):
            return name, tuple(part.strip() for part in value.split(",") if part.strip())
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.lower()]
        if isinstance(default, (int, float)):
            return name, type(default)(value)
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{value!r} is no value for {name}") from None
    return name, value


_Result = TypeVar("_Result")


def main(argv: Sequence[str]) -> int:
    """Measure recordings; return 0, or 1 if one could not be measured or a word was taken back.

    Raises:
        UsageError: a flag cannot be used, or an extra is not installed.
        WhisperStreamError: the model cannot be loaded.
    """
    options = parse_options(argv)
    require_extras(picture=options.picture is not None)
    from ...model.cpu.runtime import use_passive_omp_wait

    use_passive_omp_wait()
    model = _load(options)
    clips = _choose_clips(options, english_only=not model.is_multilingual)
    return _run(options, model, clips)


def _load(options: BenchOptions) -> Whisper:
    from ...model.weights.locate import locate

    locate(options.model)

    import torch

    from ...model.cpu.compute_types import resolve_compute_type
    from ...model.weights.loading import load_model, pick_device

    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        resolve_compute_type(options.compute_type, pick_device(options.device))
    except ModelError as error:
        raise UsageError(str(error)) from error
    return load_model(options.model, device=options.device, compute_type=options.compute_type)


def _choose_clips(options: BenchOptions, *, english_only: bool) -> list[Clip]:
    """Return the recordings in a language that the model knows; those of unknown language count as such."""
    languages = {None, "en", "zxx"}  # not known, English, nothing said
    clips = [clip for clip in options.clips if not english_only or clip.language in languages]
    if not clips:
        raise UsageError(f"{options.model} knows only English: choose another --model")
    if left_out := len(options.clips) - len(clips):
        print_message("notice", f"recordings not in English, left out: {left_out}")
    return clips


def _run(options: BenchOptions, model: Whisper, clips: Sequence[Clip]) -> int:
    from .bench_run import Bench, PeakMemory, score

    bench = Bench(model, clock=options.clock, language=options.language, options=options.stream)
    memory = PeakMemory()
    tried = [
        (clip, _attempt(partial(bench.stream, clip))) for clip in _show_progress(clips, "stream")
    ]
    rss_mb, load = memory.megabytes(), os.getloadavg()[0]
    runs = [(clip, run) for clip, run in tried if run is not None]
    if not runs:
        return 1
    plain = [
        bench.plain(clip, run) if options.plain else None
        for clip, run in _show_progress(runs, "again")
    ]
    results = [
        score(bench, clip, run, again)
        for (clip, run), again in _show_progress(list(zip(runs, plain, strict=True)), "whole file")
    ]
    figures = bench_figures(results, rss_mb=rss_mb, texts=options.texts)
    figures |= {"model": options.model, "clock": options.clock, "load_average": round(load, 2)}
    _report(options, results, figures)
    broken = figures["retracted"] or figures.get("plain_differs", 0)
    return 1 if broken or len(runs) < len(clips) else 0


def _report(options: BenchOptions, results: Sequence[BenchResult], figures: dict[str, Any]) -> None:
    if options.picture is not None:
        from .plot import draw_bench

        draw_bench(results, options.picture)
    write_report(figures, bench_table(figures), as_json=options.json)
    if options.texts and not options.json:
        sys.stdout.write(_differing_texts(results))


def _show_progress(items: Sequence[_Result], what: str) -> Iterator[_Result]:
    """Yield the items; on a terminal, a line says how far the work is."""
    shown = sys.stderr.isatty()
    for number, item in enumerate(items, start=1):
        if shown:
            sys.stderr.write(f"\r\x1b[K{what} {number} of {len(items)}")
            sys.stderr.flush()
        yield item
    if shown:
        sys.stderr.write("\r\x1b[K")


def _attempt(work: Callable[[], _Result]) -> _Result | None:
    """Do the work on one recording; an error is printed, and the result is None."""
    try:
        return work()
    except WhisperStreamError as error:
        print_message("error", str(error))
        return None


def _differing_texts(results: Sequence[BenchResult]) -> str:
    return "".join(
        f"{result.file}\n  streamed: {result.text}\n  offline:  {result.text_offline}\n"
        for result in results
        if result.text != result.text_offline
    )
