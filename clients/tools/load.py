"""``whisper-stream load``: many live streams at once, and how late their words are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...server.flags import FlagParser
from ..cli.args import (
    add_daemon_flags,
    add_server_flags,
    command_parser,
    daemon_options,
    server_key,
)
from ..cli.flag_values import number_from_zero, whole_between
from ..cli.terminal import print_notice
from ..errors import UsageError
from ..sdk.connection import stream_url
from ..sdk.embed import DaemonOptions, daemon
from .clips import Clip, choose_language, read_clips, read_durations
from .load_plan import find_capacity, make_plans
from .load_run import LoadRun, run_load
from .report import (
    keeps_up,
    load_figures,
    load_table,
    require_extras,
    server_line,
    write_report,
)

__all__ = ["LoadOptions", "main", "parse_options"]

_MOST_COUNT = 100_000  # of streams or processes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The streams to play, and the daemon to play them to.

    Attributes:
        streams: how many; with ``find_capacity`` where the search begins.
        most: where the search ends.
        bound: seconds within which 95 % of the words have to be committed.
        seconds: least audio of a stream.
        spread: seconds within which the streams begin.
        seed: of their random starts.
        processes: that play.
        server: a daemon's address; None starts one with the options ``daemon``.
    """

    clips: tuple[Clip, ...]
    streams: int
    find_capacity: bool
    most: int
    bound: float
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
    """Read the command line, without the command's name.

    Raises:
        UsageError: a flag, or a combination of them, cannot be used.
        SourceError: a recording or a manifest cannot be read.
        SystemExit: help was asked for, and printed.
    """
    given = _parser().parse_args(argv)
    embedded = daemon_options(given)
    key = server_key(given)
    if given.server is not None:
        stream_url(given.server)
    if given.most < given.streams and given.find_capacity:
        raise UsageError("--most is where the search ends: not less than --streams")
    if given.picture is not None and not given.picture.absolute().parent.is_dir():
        raise UsageError(f"--picture {given.picture}: its folder does not exist")
    clips = read_clips(given.files)
    english_only = given.server is None and embedded.model.endswith(".en")
    if language := given.language or ("en" if english_only else None):
        clips = choose_language(clips, language)
    return LoadOptions(
        clips=tuple(read_durations(clips)),
        streams=given.streams,
        find_capacity=given.find_capacity,
        most=given.most,
        bound=given.bound,
        seconds=given.seconds,
        spread=given.spread,
        seed=given.seed,
        processes=given.processes or os.cpu_count() or 1,
        server=given.server,
        key=key,
        daemon=embedded,
        json=given.json,
        picture=given.picture,
    )


def _parser() -> FlagParser:
    parser = command_parser(
        "load",
        description="Play recordings to a daemon on many connections at the pace of speech, and say"
        " how late words were committed. Error rates compare casefolded letters and digits only,"
        " so they are higher than those of `bench`. docs/capacity.md says what the figures mean.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    count = whole_between(1, _MOST_COUNT)
    files = "recordings, manifest.jsonl files, or folders with one; stream n begins with the nth"
    add("files", nargs="+", type=Path, metavar="FILE", help=files)
    add("--streams", type=count, default=1, metavar="N", help="connections (default: 1)")
    add_server_flags(add)
    add("--language", metavar="CODE", help="only recordings in it, or of unknown language")
    more = "play recordings one after the other until S seconds were spoken (default: one each)"
    add("--seconds", type=number_from_zero, default=0.0, metavar="S", help=more)
    add(
        "--spread",
        type=number_from_zero,
        default=1.0,
        metavar="S",
        help="streams start within (default: 1)",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the random starts (default: 0)")
    add("--processes", type=count, metavar="N", help="that play (default: one a processor)")
    search = "find the most streams that the daemon carries, from --streams upwards"
    add("--find-capacity", action="store_true", help=search)
    bound = "seconds that 95 %% of words are committed within (default: 2)"
    add("--bound", type=number_from_zero, default=2.0, metavar="S", help=bound)
    add("--most", type=count, default=1024, metavar="N", help="end of the search (default: 1024)")
    add("--picture", type=Path, metavar="PNG", help="draw the delays")
    add("--json", action="store_true", help="print one JSON object; the table goes to stderr")
    add_daemon_flags(parser)
    return parser


_LISTED = 16  # streams with a line of their own in the table


def main(argv: Sequence[str]) -> int:
    """Play a load; return 0, or 1 if a stream failed or the daemon carries none. Refused streams are no failure.

    Raises:
        ClientError: with its own exit code.
    """
    options = parse_options(argv)
    require_extras(picture=options.picture is not None)
    return asyncio.run(_Load(options).run())


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
        lines = load_table([(str(streams), row) for streams, row in tried], "streams")
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
        from .scoring import count_letter_errors

        options = self._options
        plans = make_plans(
            options.clips,
            streams,
            seconds=options.seconds,
            spread=options.spread,
            seed=options.seed,
        )
        run = await run_load(url, plans, options.processes, options.key)
        figures = load_figures(run, count_letter_errors)
        self._runs[streams] = run, figures
        return figures

    def _lines(self, figures: dict[str, Any]) -> str:
        listed = figures["each"][:_LISTED]
        rows = [(str(row["stream"]), row) for row in listed]
        lines = load_table([*rows, ("all", figures)], "stream") + server_line(figures)
        if left_out := len(figures["each"]) - len(listed):
            lines += f"{_streams(left_out, 'more ')}: --json lists them all\n"
        for reason, count in figures["reasons"].items():
            lines += f"{_streams(count)}: {reason}\n"
        return lines

    def _report(self, figures: dict[str, Any], lines: str) -> None:
        if self._options.picture is not None:
            from .plot import draw_load

            runs = [
                (row, [delay for outcome in run.outcomes for delay in outcome.delays])
                for run, row in self._runs.values()
            ]
            draw_load(runs, self._options.bound, self._options.picture)
        write_report(figures, lines, as_json=self._options.json)
