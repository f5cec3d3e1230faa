"""The flags of ``whisper-stream bench``, and what they ask for. No torch here."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NoReturn

from ..model.errors import UsageError
from ..model.flag_values import language, model_name
from .bench_clips import BenchClip, read_clips
from .config import StreamConfig

__all__ = ["BenchOptions", "parse_options"]


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
        clips = [replace(clip, language=clip.language or given.language) for clip in clips]
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        wrong = message.partition("--")[2].replace("=", " ").partition(" ")[0].replace("-", "_")
        if message.startswith("unrecognized") and wrong in StreamConfig.__dataclass_fields__:
            raise UsageError(f"{message}; write it as --set {wrong}=…")
        raise UsageError(f"{message.rstrip('.')}; see `whisper-stream bench --help`")


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
    add(
        "--compute-type",
        default="auto",
        metavar="TYPE",
        help="precision: int8, float32, ...; default: auto",
    )
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


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


def _language(text: str) -> str:
    return text if text == "auto" else language(text)


def _setting(text: str) -> tuple[str, Any]:
    """``name=value`` -> the field of StreamConfig and its value; several values have commas between."""
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
