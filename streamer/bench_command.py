"""``whisper-stream bench``: how good, how late and how costly streams of given recordings are.

Nothing slow is loaded before the flags are known to be right.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar

from .. import WhisperStreamError
from ..model.errors import ModelError, UsageError
from ..model.flag_values import language, model_name
from .bench_clips import BenchClip, read_clips
from .config import StreamConfig

if TYPE_CHECKING:
    from .bench import Bench, BenchResult

__all__ = ["BenchOptions", "main", "parse_options"]

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    clips: tuple[BenchClip, ...]
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
    return _run(options, _open(options))


def parse_options(argv: Sequence[str]) -> BenchOptions:
    """Raises UsageError; SystemExit when help was asked for, and printed."""
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
        clips = [_in_language(clip, given.language) for clip in clips]
    return BenchOptions(
        clips=tuple(clips),
        model=given.model,
        device=given.device,
        compute_type=given.compute_type,
        threads=given.threads,
        clock=given.clock,
        language=given.language,
        stream=stream,
        plain=given.plain,
        json=given.json,
        texts=given.texts,
        picture=given.picture,
    )


def _in_language(clip: BenchClip, code: str) -> BenchClip:
    return BenchClip(
        path=clip.path,
        language=clip.language or code,
        references=clip.references,
        words=clip.words,
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `whisper-stream bench --help`")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="whisper-stream bench",
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
    add("--model", type=model_name, default="tiny.en", metavar="NAME", help="default: tiny.en")
    add("--device", metavar="NAME", help="where the model runs, such as cpu or cuda")
    add("--compute-type", default="auto", metavar="TYPE", help="precision, such as float32")
    add("--threads", type=_count, default=0, metavar="N", help="processor threads of the model")
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
        help="an option of the stream, such as update_interval=0.5; may be repeated",
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


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _language(text: str) -> str:
    return text if text == "auto" else language(text)


def _setting(text: str) -> tuple[str, Any]:
    """``name=value`` -> the field of StreamConfig and its value."""
    name, _, value = text.partition("=")
    defaults = {entry.name: entry.default for entry in fields(StreamConfig)}
    if name not in defaults or name == "language":
        known = ", ".join(key for key in defaults if key != "language")
        raise argparse.ArgumentTypeError(f"{name!r} is none of {known}")
    default = defaults[name]
    try:
        if isinstance(default, bool):
            return name, {"true": True, "false": False}[value.lower()]
        if isinstance(default, (int, float)):
            return name, type(default)(value)
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{value!r} is no value for {name}") from None
    return name, value


def _check_extras(options: BenchOptions) -> None:
    for module, needed in (("jiwer", True), ("matplotlib", options.picture is not None)):
        if needed and find_spec(module) is None:
            raise UsageError(
                f"{module} is not installed: pip install 'whisper-stream[bench]' brings it"
            )


def _open(options: BenchOptions) -> Bench:
    from ..model.locate import locate

    locate(options.model)

    import torch

    from ..model.compute import resolve_compute_type
    from ..model.loading import load_model, pick_device
    from .bench import Bench

    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        resolve_compute_type(options.compute_type, pick_device(options.device))
    except ModelError as error:
        raise UsageError(str(error)) from error
    model = load_model(options.model, device=options.device, compute_type=options.compute_type)
    return Bench(model, clock=options.clock, language=options.language, options=options.stream)


def _run(options: BenchOptions, bench: Bench) -> int:
    from .bench import score
    from .bench_report import summary, table
    from .bench_runs import PeakMemory

    clips = [clip for clip in options.clips if bench.understands(clip)]
    if len(clips) < len(options.clips):
        _say("notice", f"{len(options.clips) - len(clips)} recordings are not in English: left out")
    if not clips:
        raise UsageError(f"{options.model} knows only English: choose another --model")
    memory = PeakMemory()
    tried = [(clip, _attempt(clip, lambda clip=clip: bench.stream(clip))) for clip in clips]
    rss_mb = memory.megabytes()
    load = os.getloadavg()[0]
    runs = [(clip, run) for clip, run in tried if run is not None]
    plain = [bench.plain(clip, run) if options.plain else None for clip, run in runs]
    results = [
        score(bench, clip, run, again) for (clip, run), again in zip(runs, plain, strict=True)
    ]
    if not results:
        return 1
    figures = summary(results, rss_mb=rss_mb, texts=options.texts)
    figures |= {"model": options.model, "clock": options.clock, "load_average": round(load, 2)}
    if options.picture is not None:
        from .bench_plot import draw

        draw(results, options.picture)
    (sys.stderr if options.json else sys.stdout).write(table(figures))
    if options.texts and not options.json:
        sys.stdout.write(_differing(results))
    if options.json:
        sys.stderr.flush()
        sys.stdout.write(json.dumps(figures, ensure_ascii=False) + "\n")
    broken = figures["retracted"] or figures.get("plain_differs", 0)
    return 1 if broken or len(runs) < len(clips) else 0


def _attempt(clip: BenchClip, work: Callable[[], _Result]) -> _Result | None:
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
