"""``whisper-stream load``: many live streams at once, and how late their words are."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any

from .dial import stream_url
from .embed import daemon
from .errors import UsageError
from .load_capacity import find_capacity
from .load_flags import LoadOptions, parse_options
from .load_plan import make_plans
from .load_report import figures_of, keeps_up, table, use_of
from .load_run import LoadRun, run_load
from .terminal import print_notice

__all__ = ["main"]

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
