"""The flags of ``whisper-stream load``, and what they ask for."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .dial import stream_url
from .embed import DaemonOptions
from .errors import UsageError
from .flags import KEY_VARIABLE, PROGRAM, Parser, thread_count
from .load_clips import LoadClip, choose_language, read_clips

__all__ = ["LoadOptions", "parse_options"]

_DAEMON_FLAGS = ("--model", "--device", "--compute-type", "--threads", "--policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    clips: tuple[LoadClip, ...]
    streams: int  # with ``find_capacity`` where the search begins
    find_capacity: bool
    most: int
    bound: float  # seconds
    seconds: float
    spread: float
    seed: int
    processes: int
    server: str | None
    key: str | None
    daemon: DaemonOptions
    json: bool
    picture: Path | None


def parse_options(argv: Sequence[str]) -> LoadOptions:
    """Raises UsageError and SourceError; SystemExit when help was asked for, and printed."""
    given = _parser().parse_args(argv)
    if given.server is not None:
        for flag in _DAEMON_FLAGS:
            if getattr(given, flag[2:].replace("-", "_")) is not None:
                raise UsageError(f"{flag} is for an embedded daemon; leave it out with --server")
        stream_url(given.server)
    elif given.key is not None:
        raise UsageError("--key is for a daemon that runs already; name it with --server")
    if given.most < given.streams and given.find_capacity:
        raise UsageError("--most is where the search ends: not less than --streams")
    if given.picture is not None and not given.picture.absolute().parent.is_dir():
        raise UsageError(f"--picture {given.picture}: its folder does not exist")
    model = given.model or "tiny.en"
    clips = read_clips(given.files)
    english_only = given.server is None and model.endswith(".en")
    if language := given.language or ("en" if english_only else None):
        clips = choose_language(clips, language)
    return LoadOptions(
        clips=tuple(clips),
        streams=given.streams,
        find_capacity=given.find_capacity,
        most=given.most,
        bound=given.bound,
        seconds=given.seconds,
        spread=given.spread,
        seed=given.seed,
        processes=given.processes or os.cpu_count() or 1,
        server=given.server,
        key=(given.key or os.environ.get(KEY_VARIABLE) or None) if given.server else None,
        daemon=DaemonOptions(
            model=model,
            device=given.device,
            compute_type=given.compute_type,
            threads=given.threads,
            policy=given.policy,
        ),
        json=given.json,
        picture=given.picture,
    )


def _parser() -> Parser:
    parser = Parser(
        prog=f"{PROGRAM} load",
        description="Play recordings to a daemon on many connections at the pace of speech, and say"
        " how late words were committed. Error rates compare casefolded letters and digits only,"
        " so they are higher than those of `bench`. docs/capacity.md says what the figures mean.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    files = "recordings, manifest.jsonl files, or folders with one; stream n begins with the nth"
    add("files", nargs="+", type=Path, metavar="FILE", help=files)
    add("--streams", type=_count, default=1, metavar="N", help="connections (default: 1)")
    add("--server", metavar="URL", help="use the daemon at ws://host:port, not an embedded one")
    key = f"of that daemon, where it wants one; better kept in {KEY_VARIABLE}: others can see flags"
    add("--key", metavar="KEY", help=key)
    add("--language", metavar="CODE", help="only recordings in it, or of unknown language")
    more = "play recordings one after the other until so much was spoken (default: one each)"
    add("--seconds", type=_seconds, default=0.0, metavar="S", help=more)
    add(
        "--spread",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="streams start within (default: 1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the random starts (default: 0)")
    add("--processes", type=_count, metavar="N", help="that play (default: one a processor)")
    search = "find the most streams that the daemon carries, from --streams upwards"
    add("--find-capacity", action="store_true", help=search)
    bound = "seconds that 95 %% of words are committed within (default: 2)"
    add("--bound", type=_seconds, default=2.0, metavar="S", help=bound)
    add("--most", type=_count, default=1024, metavar="N", help="end of the search (default: 1024)")
    add("--picture", type=Path, metavar="PNG", help="draw the delays")
    add("--json", action="store_true", help="print one JSON object; the table goes to stderr")
    daemon = parser.add_argument_group("options of the embedded daemon")
    add = daemon.add_argument
    add("--model", metavar="NAME", help="a model's name or path (default: tiny.en)")
    add("--device", metavar="NAME", help="where the model runs, such as cpu or cuda")
    add("--compute-type", metavar="TYPE", help="the precision of its numbers, such as float32")
    add("--threads", type=thread_count, metavar="N", help="processor threads of the model")
    add("--policy", metavar="NAME", help="local-agreement, align-att or either: what is committed")
    return parser


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0 up")
    return seconds
