"""The ``whisper-stream`` command: its first word picks a command, anything else is a file to play.

Nothing heavy is imported until it is needed, so that ``--help`` answers at once.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from ... import WhisperStreamError
from ..installed import check_engine

__all__ = ["COMMANDS", "PROGRAM", "Command", "main", "print_message"]

PROGRAM = "whisper-stream"
_PLAY = "clients.cli.play:main"


class Command(NamedTuple):
    """A word that begins a command line.

    Attributes:
        target: ``module:function`` inside the package; it takes argv and returns an exit code.
        help: one line.
        engine: it needs torch and the rest of the extra ``server``.
    """

    target: str
    help: str
    engine: bool = False


COMMANDS: dict[str, Command] = {
    "mic": Command("clients.cli.mic:main", "caption what a microphone hears, live"),
    "serve": Command(
        "server.daemon.main:main", "run the daemon that other programs stream audio to", engine=True
    ),
    "models": Command(
        "clients.cli.models:main", "list models, their sizes and where they are", engine=True
    ),
    "transcribe": Command(
        "clients.cli.transcribe:main",
        "files to txt, vtt, srt, tsv and json, with whisper's flags",
        engine=True,
    ),
    "bench": Command(
        "clients.tools.bench:main",
        "measure streams of recordings: errors, delays and cost",
        engine=True,
    ),
    "load": Command(
        "clients.tools.load:main", "play many streams at once: how late words are, how many fit"
    ),
    "doctor": Command(
        "server.daemon.doctor:main", "check that this machine can run the daemon", engine=True
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
            if command.engine:
                check_engine(f"`{PROGRAM} {arguments[0]}`")
            return _load(command.target)(arguments[1:])
        return _load(_PLAY)(arguments)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
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
    loaded = importlib.import_module(f"...{module}", __package__)
    command: Callable[[Sequence[str]], int] = getattr(loaded, function)
    return command


def print_message(kind: Literal["error", "warning", "notice"], text: str) -> None:
    """Print one line of the program itself to stderr; line ends in ``text`` become spaces."""
    sys.stderr.write(f"{PROGRAM}: {kind}: {' '.join(text.split())}\n")
    sys.stderr.flush()


def _fail(text: str, code: int) -> int:
    print_message("error", text)
    return code
