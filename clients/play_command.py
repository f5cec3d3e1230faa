"""``whisper-stream FILE…``: captions of files, of standard input, or of an address."""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from .. import __version__
from .cli import COMMANDS
from .errors import UsageError
from .flags import PROGRAM, Parser, add_shared_flags, play_options

if TYPE_CHECKING:
    from .output import OutputFile
    from .pipe import PcmFormat
    from .play import Track
    from .timeline import Timeline

__all__ = ["main"]

_ENCODINGS = ("s16le", "f32le")


def main(argv: Sequence[str]) -> int:
    """Play what is named, one after the other; return the exit code.

    Whatever can be wrong with the input is found before a daemon is started.

    Raises:
        ClientError: with its own exit code.
    """
    try:
        parsed = _parser().parse_args(argv)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    _check_combination(parsed)
    options = play_options(parsed)
    tracks = _tracks(parsed)
    from .player import play

    return play(options, tracks)


def _tracks(parsed: argparse.Namespace) -> list[Track]:
    from .pipe import PipeSource, UrlSource
    from .play import Track
    from .source import AudioSource

    tracks = []
    for file in parsed.files:
        pipe = file == "-"
        source = PipeSource(_pcm_format(parsed)) if pipe else AudioSource(Path(file))
        tracks.append(
            Track(
                source=source,
                total=source.check(),
                **_files(parsed, "stdin" if pipe else Path(file).stem, source.name),
                speed=None if pipe else parsed.speed,
            )
        )
    if parsed.url is not None:
        address = UrlSource(parsed.url)
        stem = Path(address.name).stem or "stream"
        track = Track(
            source=address,
            total=address.check(),
            speed=parsed.speed,
            **_files(parsed, stem, address.name),
        )
        tracks.append(track)
    return tracks


class _Files(TypedDict):
    output: OutputFile | None
    timeline: Timeline | None


def _files(parsed: argparse.Namespace, stem: str, name: str) -> _Files:
    """The files to write for one source; ``{}`` in a name becomes ``stem``."""
    from .output import OutputFile
    from .timeline import Timeline

    def path(template: str) -> Path:
        return Path(template.replace("{}", stem))

    return _Files(
        output=OutputFile(path(parsed.output)) if parsed.output is not None else None,
        timeline=Timeline(path(parsed.timeline), name) if parsed.timeline is not None else None,
    )


def _pcm_format(parsed: argparse.Namespace) -> PcmFormat | None:
    from .pipe import PcmFormat

    if parsed.encoding is parsed.sample_rate is parsed.channels is None:
        return None
    return PcmFormat(
        encoding=parsed.encoding or "s16le",
        sample_rate=parsed.sample_rate or 16_000,
        channels=parsed.channels or 1,
    )


def _check_combination(parsed: argparse.Namespace) -> None:
    files = parsed.files
    if not files and parsed.url is None:
        raise UsageError(f"name an audio file or a command; see `{PROGRAM} --help`")
    if files and re.fullmatch(r"[a-z]+", files[0]) and not os.path.exists(files[0]):
        near = difflib.get_close_matches(files[0], COMMANDS, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}? See" if near else "see"
        raise UsageError(
            f"{files[0]!r} is neither a file nor a command ({', '.join(COMMANDS)}); "
            f"{hint} `{PROGRAM} --help`"
        )
    if files.count("-") > 1:
        raise UsageError("standard input can be read once only; name - once")
    several = len(files) + (parsed.url is not None) > 1
    for flag, name in (("--output", parsed.output), ("--timeline", parsed.timeline)):
        if several and name is not None and "{}" not in name:
            raise UsageError(
                f"{flag} of several files needs {{}} for each one's name, as in '{{}}.srt'"
            )
    if "-" not in files:
        for name in ("encoding", "sample_rate", "channels"):
            if getattr(parsed, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is for raw audio on standard input; name - as the file")


def _parser() -> Parser:
    listed = "\n".join(f"  {name:<20}  {command.help}" for name, command in COMMANDS.items())
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} FILE... [options]\n       {PROGRAM} COMMAND [options]",
        description="Caption audio as if it were spoken now.",
        epilog=f"commands (each with its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    files = "audio or video files, one after the other; - reads standard input"
    add("files", metavar="FILE", nargs="*", help=files)
    add("--url", metavar="URL", help="audio at an http, https, rtsp or HLS address")
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    add(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N",
        help="times real time; 0: as fast as the engine takes it (default: 1)",
    )
    add_shared_flags(parser)
    raw = parser.add_argument_group(
        "options of raw audio on standard input (default: look; what is no container is s16le)"
    )
    add = raw.add_argument
    add("--encoding", choices=_ENCODINGS, help="how a sample is stored (default: s16le)")
    add("--sample-rate", type=_rate, metavar="HZ", help="samples a second (default: 16000)")
    add("--channels", type=_channels, metavar="N", help="interleaved channels (default: 1)")
    return parser


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not 0 <= speed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return speed


def _rate(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1_000 <= int(text) <= 768_000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of samples a second, as 16000")
    return int(text)


def _channels(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 32):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of channels from 1 to 32")
    return int(text)
