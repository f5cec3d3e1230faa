"""``whisper-stream transcribe``: audio files in, transcripts in a folder out.

Names, defaults and meaning of the flags are those of the ``whisper`` command of openai-whisper 20250625;
``--compute_type`` and ``--batch_size`` are our own. Nothing slow is loaded before the flags are known to be right.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ... import WhisperStreamError
from ...model.cpu.runtime import MOST_THREADS
from ...model.decoding.fallback import (
    COMPRESSION_RATIO_THRESHOLD,
    LOGPROB_THRESHOLD,
    NO_SPEECH_THRESHOLD,
    TEMPERATURE_STEP,
    options_ladder,
)
from ...model.decoding.options import DecodingOptions
from ...model.errors import DecodingOptionsError
from ...model.transcription.subtitles import SubtitleOptions
from ...model.weights.locate import locate
from ...model.weights.registry import lookup
from ...model.whisper.languages import LANGUAGES, TO_LANGUAGE_CODE
from ...model.whisper.words import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS
from ...server.flags import FlagParser
from ..errors import UsageError
from .args import command_parser
from .flag_values import boolean, language, model_name, number, number_or_none, whole, whole_or_none
from .main import PROGRAM, print_message

if TYPE_CHECKING:
    from ...model.transcription.writers import ResultWriter
    from ...model.whisper.network import Whisper

__all__ = [
    "TranscribeSettings",
    "fallback_temperatures",
    "main",
    "parse_settings",
    "transcribe_parser",
    "with_underscores",
]

_NEEDS_WORDS = "(requires --word_timestamps True)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    name: str  # with underscores
    help: str
    default: object = None
    parse: Callable[[str], Any] = str
    choices: Sequence[str] | None = None
    metavar: str | None = None
    short: str | None = None

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        shown = "" if self.default is None else f" (default: {self.default})"
        group.add_argument(
            f"--{self.name}",
            *([self.short] if self.short else []),
            default=self.default,
            type=self.parse,
            choices=self.choices,
            metavar=self.metavar or (None if self.choices else _METAVARS[self.parse]),
            help=(self.help + shown).replace("%", "%%"),
        )


_METAVARS: dict[Callable[[str], Any], str] = {
    str: "TEXT",
    boolean: "True|False",
    whole: "N",
    number: "X",
    whole_or_none: "N",
    number_or_none: "X",
}

_GROUPS: dict[str, tuple[_Flag, ...]] = {
    "model": (
        _Flag(
            name="model",
            default="turbo",
            parse=model_name,
            metavar="NAME",
            help="a published model, or the path of weights; `whisper-stream models` lists them",
        ),
        _Flag(name="model_dir", metavar="DIR", help="where downloaded weights are kept"),
        _Flag(name="device", metavar="NAME", help="cpu, cuda or cuda:N; cuda where there is one"),
        _Flag(name="fp16", default=True, parse=boolean, help="False insists on full precision"),
        _Flag(
            name="compute_type",
            default="auto",
            metavar="TYPE",
            help="precision of the weights: float32, float16, bfloat16, on CPUs also int8; auto is the "
            "fastest that the machine can do (float16 on a GPU, bfloat16 or int8 on most CPUs)",
        ),
        _Flag(
            name="threads",
            default=0,
            parse=whole_or_none,
            help="processor threads, over MKL_NUM_THREADS and OMP_NUM_THREADS; 0: as these say",
        ),
        _Flag(
            name="batch_size",
            default=1,
            parse=whole,
            help="windows decoded at once; above 1 files are cut at silences beforehand, which is "
            "faster, but text and times may differ",
        ),
    ),
    "output": (
        _Flag(name="output_dir", short="-o", default=".", metavar="DIR", help="made if missing"),
        _Flag(
            name="output_format",
            short="-f",
            default="all",
            choices=("txt", "vtt", "srt", "tsv", "json", "all"),
            help="of the files, each named after its audio",
        ),
        _Flag(
            name="verbose",
            default=True,
            parse=boolean,
            help="True prints each segment as it is found, False shows a progress bar",
        ),
    ),
    "what is said": (
        _Flag(
            name="task",
            default="transcribe",
            choices=("transcribe", "translate"),
            help="translate: into English",
        ),
        _Flag(
            name="language",
            parse=language,
            choices=(*sorted(LANGUAGES), *sorted(name.title() for name in TO_LANGUAGE_CODE)),
            metavar="LANGUAGE",
            help="spoken, as a code or an English name; detected if not given",
        ),
        _Flag(name="initial_prompt", help="what the first window is prompted with: names, style"),
        _Flag(
            name="carry_initial_prompt",
            default=False,
            parse=boolean,
            help="prompt every window with it",
        ),
        _Flag(
            name="condition_on_previous_text",
            default=True,
            parse=boolean,
            help="prompt each window with the text before it; False makes loops less likely",
        ),
        _Flag(
            name="clip_timestamps",
            default="0",
            metavar="SECONDS",
            help="start,end,start,end,... of the parts to transcribe; the last end may be left out",
        ),
    ),
    "decoding": (
        _Flag(
            name="temperature", default=0, parse=number, help="of sampling; 0 takes the likeliest"
        ),
        _Flag(
            name="temperature_increment_on_fallback",
            default=TEMPERATURE_STEP,
            parse=number_or_none,
            help="added, up to 1, as long as a window fails one of the two thresholds below; "
            "None: never",
        ),
        _Flag(
            name="compression_ratio_threshold",
            default=COMPRESSION_RATIO_THRESHOLD,
            parse=number_or_none,
            help="a text that compresses better than this repeats itself",
        ),
        _Flag(
            name="logprob_threshold",
            default=LOGPROB_THRESHOLD,
            parse=number_or_none,
            help="a mean log-probability below this is a guess",
        ),
        _Flag(
            name="no_speech_threshold",
            default=NO_SPEECH_THRESHOLD,
            parse=number_or_none,
            help="a guess where no speech is likelier than this is silence",
        ),
        _Flag(
            name="best_of",
            default=5,
            parse=whole_or_none,
            help="samples to choose from, at temperatures above 0",
        ),
        _Flag(
            name="beam_size",
            default=5,
            parse=whole_or_none,
            help="of beam search, at temperature 0",
        ),
        _Flag(
            name="patience",
            parse=number,
            help="beams to finish, in multiples of beam_size (arXiv:2204.05424)",
        ),
        _Flag(
            name="length_penalty",
            parse=number,
            help="alpha of arXiv:1609.08144, 0 to 1; mean log-probability if not given",
        ),
        _Flag(
            name="suppress_tokens",
            default="-1",
            metavar="IDS",
            help="token ids never said, separated by commas; -1: most special characters",
        ),
    ),
    "word times": (
        _Flag(
            name="word_timestamps",
            default=False,
            parse=boolean,
            help="time every word, and segments by their words",
        ),
        _Flag(
            name="prepend_punctuations",
            default=PREPEND_PUNCTUATIONS,
            metavar="MARKS",
            help="marks that belong to the next word",
        ),
        _Flag(
            name="append_punctuations",
            default=APPEND_PUNCTUATIONS,
            metavar="MARKS",
            help="marks that belong to the word before",
        ),
        _Flag(
            name="highlight_words",
            default=False,
            parse=boolean,
            help=f"{_NEEDS_WORDS} underline each word as it is spoken, in srt and vtt",
        ),
        _Flag(
            name="max_line_width",
            parse=whole_or_none,
            help=f"{_NEEDS_WORDS} characters in a line of subtitles",
        ),
        _Flag(
            name="max_line_count",
            parse=whole_or_none,
            help=f"{_NEEDS_WORDS} lines in a subtitle; needs max_line_width",
        ),
        _Flag(
            name="max_words_per_line",
            parse=whole_or_none,
            help=f"{_NEEDS_WORDS} words in a subtitle; not with max_line_width",
        ),
        _Flag(
            name="hallucination_silence_threshold",
            parse=number_or_none,
            help=f"{_NEEDS_WORDS} skip silences longer than this (seconds) beside text that looks "
            "made up",
        ),
    ),
}


def transcribe_parser() -> FlagParser:
    """Return the parser. A mistake raises UsageError; ``--help`` raises SystemExit."""
    parser = command_parser(
        "transcribe",
        usage=f"{PROGRAM} transcribe FILE [FILE ...] [options]",
        description="Transcribe audio files, with the flags of the `whisper` command.",
        epilog="Hyphens do as well as underscores: --output-dir is --output_dir.",
    )
    parser.add_argument("audio", nargs="+", metavar="FILE", help="any audio or video file")
    for title, flags in _GROUPS.items():
        group = parser.add_argument_group(title)
        for flag in flags:
            flag.add_to(group)
    return parser


def with_underscores(argv: Sequence[str]) -> list[str]:
    """Return ``argv`` with ``--output-dir=a-b`` as ``--output_dir=a-b``, up to a ``--`` of its own."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [_with_underscores(argument) for argument in argv[:end]] + list(argv[end:])


def _with_underscores(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if not argument.startswith("--") or " " in name:
        return argument
    return f"--{name[2:].replace('-', '_')}{equals}{value}"


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
    """The files to transcribe, and how; checked as far as that needs no model."""

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
        """The ``options`` that are fields of DecodingOptions."""
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
    """Return temperatures from ``first`` up to 1 in steps of ``increment``, rounded as ``numpy.arange`` does.

    Raises:
        UsageError: ``increment`` is not above 0.
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
    """Return the compute type; ``--fp16 False`` is full precision, which only float32 gives."""
    asked: str = given.compute_type
    if given.fp16:
        return asked
    if asked not in ("auto", "float32"):
        raise UsageError(f"--fp16 False and --compute_type {asked} exclude each other")
    return "float32"


def _settle_language(given: argparse.Namespace) -> list[str]:
    """Set the language of models that know English only; return notices for the user."""
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
    """Return notices of files whose transcripts overwrite each other, as their names differ by folder or type only."""
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


_Result = TypeVar("_Result")


def main(argv: Sequence[str]) -> int:
    """Transcribe files; return 0, or 1 if one could not be transcribed.

    Raises:
        UsageError: a flag makes no sense, or the folder cannot be written to.
        WhisperStreamError: the model cannot be loaded.
    """
    settings = parse_settings(argv)
    for notice in settings.notices:
        print_message("warning", notice)
    writer = _writer(settings)
    with _plain_warnings():
        failed = _transcribe_files(settings, writer)
    if failed and len(settings.files) > 1:
        print_message("error", f"{failed} of {len(settings.files)} files failed")
    return 1 if failed else 0


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Show warnings of the library as one line each, without a place in its source."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print_message("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield


def _writer(settings: TranscribeSettings) -> ResultWriter:
    from ...model.transcription.writers import get_writer

    folder = Path(settings.output_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output_dir {folder} cannot be made ({error.strerror}): choose another"
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--output_dir {folder} cannot be written to: choose another")
    return get_writer(settings.output_format, folder)


def _transcribe_files(settings: TranscribeSettings, writer: ResultWriter) -> int:
    """Transcribe every file that can be; return how many could not."""
    from ...model.media.audio import load_audio
    from ...model.transcription.transcribe import transcribe

    _check_machine(settings)
    work = partial(
        transcribe,
        temperature=settings.temperatures,
        verbose=settings.verbose,
        batch_size=settings.batch_size,
        on_language=_print_language,
        **settings.options,
    )
    model: Whisper | None = None
    failed = 0
    for path in settings.files:
        if len(settings.files) > 1:
            _head(path)
        samples = _attempt(path, partial(load_audio, path))
        if samples is None:
            failed += 1
            continue
        if model is None:  # not before there is something to transcribe
            model = _load(settings)
        result = _attempt(path, partial(work, model, samples))
        if result is None or not _attempt(path, partial(_write, settings, writer, result, path)):
            failed += 1
    return failed


def _write(
    settings: TranscribeSettings, writer: ResultWriter, result: Mapping[str, Any], path: str
) -> bool:
    writer(result, path, settings.subtitles)
    return True


def _attempt(path: str, work: Callable[[], _Result]) -> _Result | None:
    """Do the work on one file; an error is printed, and the result is None."""
    try:
        return work()
    except DecodingOptionsError as error:
        raise UsageError(str(error)) from error  # it would be the same with every file
    except BrokenPipeError:
        raise  # nobody reads what is printed
    except WhisperStreamError as error:
        print_message("error", str(error))
    except Exception as error:  # noqa: BLE001
        print_message("error", f"{path} failed ({type(error).__name__}: {error})")
    return None


def _check_machine(settings: TranscribeSettings) -> None:
    """Reject options that only PyTorch can judge, and set the number of threads."""
    from ...model.cpu.runtime import use_passive_omp_wait

    use_passive_omp_wait()

    import torch

    from ...model.cpu.compute_types import resolve_compute_type
    from ...model.errors import ModelError
    from ...model.transcription.transcribe import clip_points
    from ...model.weights.loading import pick_device

    if settings.threads:
        torch.set_num_threads(settings.threads)
    try:
        resolve_compute_type(settings.compute_type, pick_device(settings.device))
        clip_points(settings.options.get("clip_timestamps", "0"))
        options_ladder(settings.temperatures, settings.decode_options)
    except ModelError as error:
        raise UsageError(str(error)) from error


def _load(settings: TranscribeSettings) -> Whisper:
    from ...model.cpu.warmup import COMPILING, warm_up
    from ...model.weights.loading import load_model

    source = locate(settings.model, download_root=settings.model_dir)
    if source.kind == "download":
        size = lookup(settings.model).size / 1e6
        print_message(
            "notice",
            f"{settings.model} is not on this machine: downloading {size:,.0f} MB to "
            f"{source.paths[0]}; `whisper-stream models` lists smaller ones for --model",
        )
    model = load_model(
        settings.model,
        device=settings.device,
        compute_type=settings.compute_type,
        download_root=settings.model_dir,
    )
    warm_up(model, lambda: print_message("notice", COMPILING))
    return model


def _head(path: str) -> None:
    """Print the name of the next file as ``head`` does. On stderr: standard output is text alone, also in a pipe."""
    sys.stdout.flush()
    sys.stderr.write(f"==> {path} <==\n")
    sys.stderr.flush()


def _print_language(code: str) -> None:
    sys.stdout.write(f"Detected language: {LANGUAGES[code].title()}\n")
