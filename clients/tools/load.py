"""The flags of ``whisper-stream load``, and what they ask for.

``whisper-stream load``: many live streams at once, and how late their words are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..cli.args import KEY_VARIABLE, PROGRAM, Parser, thread_count
from ..cli.terminal import print_notice
from ..errors import UsageError
from ..sdk.connection import stream_url
from ..sdk.embed import DaemonOptions, daemon
from .load_clips import LoadClip, choose_language, read_clips
from .load_plan import find_capacity, make_plans
from .load_report import figures_of, keeps_up, table, use_of
from .load_run import LoadRun, run_load

__all__ = ["LoadOptions", "main", "parse_options"]

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


_LISTED = 16  # streams with a line of their own in the table


def main(argv: Sequence[str]) -> int:
    """Run the command. 0: done, refused streams or not. 1: a stream failed, or none is carried.

    Raises:
        ClientError: with its own exit code.
    """
    try:
        options = parse_options(argv)
    except SystemExit as done:  # --help
        return int(done.code or 0)
    _check_extras(options)
    return asyncio.run(_Load(options).run())


def _check_extras(options: LoadOptions) -> None:
    for module, needed in (("jiwer", True), ("matplotlib", options.picture is not None)):
        if needed and find_spec(module) is None:
            raise UsageError(
                f"{module} is not installed: pip install 'whisper-stream[bench]' brings it"
            )


def _streams(count: int, more: str = "") -> str:
    return f"{count} {more}stream{'' if count == 1 else 's'}"


class _Load:
    def __init__(self, options: LoadOptions) -> None:
        self._options = options
        self._runs: dict[int, tuple[LoadRun, dict[str, Any]]] = {}  # by number of streams

    async def run(self) -> int:
        options = self._options
        async with AsyncExitStack() as stack:
            if options.server is not None:
                url = stream_url(options.server)
            else:
                url = stream_url(await stack.enter_async_context(daemon(options.daemon)))
            if not options.find_capacity:
                figures = await self._measure(url, options.streams)
                self._report(figures, self._lines(figures))
                return 1 if figures["failed"] else 0
            capacity = await self._search(url)
        figures = self._runs[capacity or min(self._runs)][1]
        tried = sorted((streams, figures) for streams, (_, figures) in self._runs.items())
        lines = table([(str(streams), row) for streams, row in tried], "streams")
        lines += f"capacity: {_streams(capacity)} with 95 % of words within {options.bound:g} s\n"
        brief = [{key: row[key] for key in row if key != "each"} for _, row in tried]
        self._report(
            {**figures, "capacity": capacity, "bound": options.bound, "tried": brief}, lines
        )
        return 0 if capacity else 1

    async def _search(self, url: str) -> int:
        async def carries(streams: int) -> bool:
            figures = await self._measure(url, streams)
            kept = keeps_up(figures, self._options.bound)
            print_notice(f"{_streams(streams)}: {'carried' if kept else 'too many'}")
            return kept

        options = self._options
        return await find_capacity(carries, first=options.streams, most=options.most)

    async def _measure(self, url: str, streams: int) -> dict[str, Any]:
        from .load_scoring import count_errors

        options = self._options
        plans = make_plans(
            options.clips,
            streams,
            seconds=options.seconds,
            spread=options.spread,
            seed=options.seed,
        )
        run = await run_load(url, plans, options.processes, options.key)
        figures = figures_of(run, count_errors)
        self._runs[streams] = run, figures
        return figures

    def _lines(self, figures: dict[str, Any]) -> str:
        listed = figures["each"][:_LISTED]
        rows = [(str(row["stream"]), row) for row in listed]
        lines = table([*rows, ("all", figures)], "stream") + use_of(figures)
        if left_out := len(figures["each"]) - len(listed):
            lines += f"{_streams(left_out, 'more ')}: --json lists them all\n"
        for reason, count in figures["reasons"].items():
            lines += f"{_streams(count)}: {reason}\n"
        return lines

    def _report(self, figures: dict[str, Any], lines: str) -> None:
        if self._options.picture is not None:
            from .load_plot import draw

            runs = [
                (row, [delay for outcome in run.outcomes for delay in outcome.delays])
                for run, row in self._runs.values()
            ]
            draw(runs, self._options.bound, self._options.picture)
        if self._options.json:
            sys.stderr.write(lines)
            sys.stderr.flush()
            sys.stdout.write(json.dumps(figures) + "\n")
        else:
            sys.stdout.write(lines)
