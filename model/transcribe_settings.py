"""What ``whisper-stream transcribe`` was asked for, checked as far as no model is needed. No torch here."""

from __future__ import annotations

import argparse
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from .decoding_options import DecodingOptions
from .errors import DecodingOptionsError, UsageError
from .subtitles import SubtitleOptions
from .threads import MOST_THREADS
from .transcribe_flags import transcribe_parser, with_underscores

__all__ = ["TranscribeSettings", "fallback_temperatures", "parse_settings"]

_SUBTITLES = tuple(entry.name for entry in fields(SubtitleOptions))
_DECODING = frozenset(entry.name for entry in fields(DecodingOptions)) - {"temperature"}
_OWN = frozenset(
    ("audio", "model", "model_dir", "device", "compute_type", "threads", "batch_size")
    + ("output_dir", "output_format", "verbose", "temperature")
    + ("temperature_increment_on_fallback", *_SUBTITLES)
)

_MOST_CANDIDATES = 100  # of a beam or a draw; more would not end


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscribeSettings:
    files: tuple[str, ...]
    model: str  # a published name or a path
    model_dir: str | None
    device: str | None
    compute_type: str
    threads: int  # 0: as the environment says
    output_dir: str
    output_format: str
    subtitles: Mapping[str, Any]  # fields of SubtitleOptions
    verbose: bool
    temperatures: tuple[float, ...]
    batch_size: int
    options: Mapping[str, Any]  # all else that transcribe() takes
    notices: tuple[str, ...]  # what the user should know before the work begins

    @property
    def decode_options(self) -> dict[str, Any]:
        """Those of ``options`` that are fields of DecodingOptions."""
        return {name: value for name, value in self.options.items() if name in _DECODING}


def parse_settings(argv: Sequence[str]) -> TranscribeSettings:
    """Read the command line, without the command's name.

    Raises:
        UsageError: a flag, or a combination of them, makes no sense; names it.
        SystemExit: help was asked for, and printed.
    """
    given = transcribe_parser().parse_args(with_underscores(argv))
    notices = [*_settle_language(given), *_no_effect(given), *_overwritten(given.audio)]
    subtitles = {name: getattr(given, name) for name in _SUBTITLES}
    _check_subtitles(given, subtitles)
    for name in ("beam_size", "best_of"):
        if (asked := getattr(given, name)) is not None and asked > _MOST_CANDIDATES:
            raise UsageError(f"--{name} must be at most {_MOST_CANDIDATES}, and is {asked}")
    return TranscribeSettings(
        files=tuple(given.audio),
        model=given.model,
        model_dir=given.model_dir,
        device=given.device,
        compute_type=_compute_type(given),
        threads=_within(0, MOST_THREADS, "threads", given.threads or 0),
        output_dir=given.output_dir,
        output_format=given.output_format,
        subtitles=subtitles,
        verbose=given.verbose,
        temperatures=fallback_temperatures(
            given.temperature, given.temperature_increment_on_fallback
        ),
        batch_size=_at_least(1, "batch_size", given.batch_size),
        options={name: value for name, value in vars(given).items() if name not in _OWN},
        notices=tuple(notices),
    )


def fallback_temperatures(first: float, increment: float | None) -> tuple[float, ...]:
    """From ``first`` up to 1 in steps of ``increment``, rounded as ``numpy.arange`` does.

    Raises:
        UsageError: steps of nothing, or down.
    """
    if increment is None:
        return (first,)
    if increment <= 0:
        raise UsageError(
            f"--temperature_increment_on_fallback must be above 0, or None, and is {increment}"
        )
    step = (first + increment) - first
    count = math.ceil((1.0 + 1e-6 - first) / increment)
    return tuple(first + index * step for index in range(count)) or (first,)


def _within(least: int, most: int, name: str, value: int) -> int:
    if not least <= value <= most:
        raise UsageError(f"--{name} must be from {least} to {most}, and is {value}")
    return value


def _at_least(least: int, name: str, value: int) -> int:
    if value < least:
        raise UsageError(f"--{name} must be at least {least}, and is {value}")
    return value


def _compute_type(given: argparse.Namespace) -> str:
    """``--fp16 False`` is full precision, which only float32 gives."""
    asked: str = given.compute_type
    if given.fp16:
        return asked
    if asked not in ("auto", "float32"):
        raise UsageError(f"--fp16 False and --compute_type {asked} exclude each other")
    return "float32"


def _settle_language(given: argparse.Namespace) -> list[str]:
    """English-only models leave no choice. Returns what to tell the user."""
    if not given.model.endswith(".en") or given.language == "en":
        return []
    asked, given.language = given.language, "en"
    if asked is None:
        return []
    return [f"{given.model} knows English only: --language {asked} is not used"]


def _no_effect(given: argparse.Namespace) -> list[str]:
    notices = []
    if given.max_line_count and not given.max_line_width:
        notices.append("--max_line_count has no effect without --max_line_width")
    if given.max_words_per_line and given.max_line_width:
        notices.append("--max_words_per_line has no effect with --max_line_width")
    if given.hallucination_silence_threshold is not None and not given.word_timestamps:
        notices.append(
            "--hallucination_silence_threshold has no effect without --word_timestamps True"
        )
    return notices


def _overwritten(files: Sequence[str]) -> list[str]:
    """Files of one name in several folders, or of several types, have the same transcript."""
    stems = Counter(os.path.splitext(os.path.basename(path))[0] for path in files)
    return [
        f"{count} of the files are called {stem}: the last one's transcript stays"
        for stem, count in stems.items()
        if count > 1
    ]


def _check_subtitles(given: argparse.Namespace, subtitles: Mapping[str, Any]) -> None:
    for name, value in subtitles.items():
        if value and not given.word_timestamps:
            raise UsageError(f"--{name} requires --word_timestamps True")
    try:
        SubtitleOptions.from_mapping(subtitles)
    except DecodingOptionsError as error:
        raise UsageError(f"--{error}") from error
