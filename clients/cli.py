"""The ``whisper-stream`` command: its first word picks a command, anything else is a file to play.

Nothing heavy is imported until it is needed, so that ``--help`` answers at once.
"""

from __future__ import annotations

import argparse
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from .. import WhisperStreamError, __version__
from .errors import UsageError

if TYPE_CHECKING:
    from .play import PlayOptions

__all__ = ["COMMANDS", "Command", "main"]

PROGRAM = "whisper-stream"


class Command(NamedTuple):
    """``target`` is ``module:function`` inside the package; it takes argv and returns a code."""

    target: str
    help: str


COMMANDS: dict[str, Command] = {
    "serve": Command("server.main:main", "run the daemon that other programs stream audio to"),
    "models": Command("model.models_command:main", "list models, their sizes and where they are"),
    "transcribe": Command(
        "model.transcribe_command:main",
        "files to txt, vtt, srt, tsv and json, with whisper's flags",
    ),
    "bench": Command(
        "streamer.bench_command:main", "measure streams of recordings: errors, delays and cost"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code.

    0: done. 1: an error while running. 2: an option or input that cannot be used. 130 and 143:
    ended by SIGINT or SIGTERM. Every error is one line on stderr.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        if arguments and (command := COMMANDS.get(arguments[0])):
            return _load(command.target)(arguments[1:])
        return _play(arguments)
    except WhisperStreamError as error:
        return _fail(str(error), getattr(error, "exit_code", 1))
    except BrokenPipeError:
        # The reader of our output has gone. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _fail(f"{error.strerror or error}", 1)
    except KeyboardInterrupt:
        return 130


def _load(target: str) -> Callable[[Sequence[str]], int]:
    module, _, function = target.partition(":")
    loaded = importlib.import_module(f"..{module}", __package__)
    command: Callable[[Sequence[str]], int] = getattr(loaded, function)
    return command


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"{PROGRAM}: error: {' '.join(text.split())}\n")
    return code


def _play(arguments: list[str]) -> int:
    try:
        parsed = _parser().parse_args(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    options = _play_options(parsed)
    from .play import play

    return play(options)


def _play_options(parsed: argparse.Namespace) -> PlayOptions:
    _check_combination(parsed)
    from ..server.wire import Start
    from .embed import DaemonOptions
    from .play import PlayOptions

    return PlayOptions(
        file=Path(parsed.file),
        start=Start(language=parsed.language, task=parsed.task, prompt=parsed.prompt),
        speed=parsed.speed,
        server=parsed.server,
        daemon=DaemonOptions(
            model=parsed.model or "tiny.en",
            device=parsed.device,
            compute_type=parsed.compute_type,
            threads=parsed.threads,
        ),
        json=parsed.json,
        output=Path(parsed.output) if parsed.output is not None else None,
        color=parsed.color,
    )


def _check_combination(parsed: argparse.Namespace) -> None:
    if parsed.file is None:
        raise UsageError(f"name an audio file or a command; see `{PROGRAM} --help`")
    if re.fullmatch(r"[a-z]+", parsed.file) and not os.path.exists(parsed.file):
        raise UsageError(
            f"{parsed.file!r} is neither a file nor a command ({', '.join(COMMANDS)}); "
            f"see `{PROGRAM} --help`"
        )
    if parsed.server is not None:
        for name in ("model", "device", "compute_type", "threads"):
            if getattr(parsed, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is for an embedded daemon; leave it out with --server")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{PROGRAM} --help`")


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<20}  {command.help}" for name, command in COMMANDS.items())
    parser = _Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} FILE [options]\n       {PROGRAM} COMMAND [options]",
        description="Caption an audio file as if it were spoken now.",
        epilog=f"commands (each with its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("file", metavar="FILE", nargs="?", help="any audio or video file")
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    add(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N",
        help="times real time; 0: as fast as the engine takes it (default: 1)",
    )
    add("--language", type=_language, metavar="CODE", help="such as en or de (default: detected)")
    add(
        "--task",
        choices=("transcribe", "translate"),
        default="transcribe",
        help="translate: into English (default: transcribe)",
    )
    add("--prompt", default="", metavar="TEXT", help="context or vocabulary to expect")
    add("--json", action="store_true", help="print every message of the server as a JSON line")
    add("--output", metavar="FILE", help="write the transcript as .srt, .vtt, .txt or .json")
    add("--no-color", dest="color", action="store_false", help="captions without colors")
    add("--server", metavar="URL", help="use the daemon at ws://host:port, not an embedded one")
    daemon = parser.add_argument_group("options of the embedded daemon")
    add = daemon.add_argument
    add("--model", metavar="NAME", help="a model's name or path (default: tiny.en)")
    add("--device", metavar="NAME", help="where the model runs, such as cpu or cuda")
    add("--compute-type", metavar="TYPE", help="precision: int8, float32, ...; default: auto")
    add("--threads", type=_threads, metavar="N", help="processor threads of the model")
    return parser


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 <= speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return speed


def _language(text: str) -> str:
    code = text.strip().lower()
    if not re.fullmatch(r"[a-z]{2,3}", code):
        raise argparse.ArgumentTypeError(f"{text!r} is no language code such as en or de")
    return code


def _threads(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)
