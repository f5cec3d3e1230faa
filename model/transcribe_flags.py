"""The flags of ``whisper-stream transcribe``: those of the ``whisper`` command. No torch here.

Names, defaults and meaning are those of openai-whisper 20250625; ``--compute_type`` and
``--batch_size`` are our own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from .errors import UsageError
from .flag_values import (
    boolean,
    language,
    model_name,
    number,
    number_or_none,
    whole,
    whole_or_none,
)
from .languages import LANGUAGES, TO_LANGUAGE_CODE
from .words import APPEND_PUNCTUATIONS, PREPEND_PUNCTUATIONS

__all__ = ["PROGRAM", "transcribe_parser", "with_underscores"]

PROGRAM = "whisper-stream transcribe"

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
            default=0.2,
            parse=number_or_none,
            help="added, up to 1, as long as a window fails one of the two thresholds below; "
            "None: never",
        ),
        _Flag(
            name="compression_ratio_threshold",
            default=2.4,
            parse=number_or_none,
            help="a text that compresses better than this repeats itself",
        ),
        _Flag(
            name="logprob_threshold",
            default=-1.0,
            parse=number_or_none,
            help="a mean log-probability below this is a guess",
        ),
        _Flag(
            name="no_speech_threshold",
            default=0.6,
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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").rstrip(".")
        raise UsageError(f"{text}; see `{PROGRAM} --help`")


def transcribe_parser() -> argparse.ArgumentParser:
    """The parser. A mistake raises UsageError; ``--help`` raises SystemExit."""
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} FILE [FILE ...] [options]",
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
    """``--output-dir=a-b`` as ``--output_dir=a-b``, up to a ``--`` of its own."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [_with_underscores(argument) for argument in argv[:end]] + list(argv[end:])


def _with_underscores(argument: str) -> str:
    name, equals, value = argument.partition("=")
    if not argument.startswith("--") or " " in name:
        return argument
    return f"--{name[2:].replace('-', '_')}{equals}{value}"
