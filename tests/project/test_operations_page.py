"""docs/operations.md names every metric and every log event, as the daemon has them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from whisper_stream.server.http.exposition import render_metrics
from whisper_stream.server.metrics import Metrics
from whisper_stream.server.process_stats import GpuUsage, ProcessStats
from whisper_stream.streamer.engine.engine import EngineStatistics

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
LEVELS = ("debug", "info", "warning", "error", "critical")


class Event(NamedTuple):
    """``level`` is None where the source decides it at run time."""

    name: str
    level: str | None
    fields: tuple[str, ...]


def rows(first: str) -> list[list[str]]:
    """Return the cells of the page's table whose first column is called ``first``, without backticks."""
    lines = PAGE.split(f"| {first} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]


def families() -> dict[str, tuple[str, str]]:
    """Return type and label of every metric, by its name, as the daemon shows them."""
    metrics = Metrics()
    metrics.errors["gap"] += 1
    metrics.refusals["key"] += 1
    metrics.lag.observe(1.0)
    gpu = GpuUsage(memory_bytes=1, reserved_bytes=1, utilization=0.5)
    idle = EngineStatistics(
        queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=0.0
    )
    stats = ProcessStats(gpu=gpu, metrics=metrics.snapshot())
    text = render_metrics(stats, load=0.0, engine=idle).decode()
    return {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            " ".join(sorted({label for sample in family.samples for label in sample.labels})),
        )
        for family in text_string_to_metric_families(text)
    }


def test_every_metric_is_on_the_page_with_type_and_label() -> None:
    listed = {name: (kind, label) for name, kind, label, _, _ in rows("metric")}
    assert listed == families()


def test_every_metric_is_explained() -> None:
    for name, _, _, unit, meaning in rows("metric"):
        assert meaning, name
        ending = next((each for each in ("seconds", "bytes") if each in name), None)
        assert ending is None or unit == ending, name


def events() -> Iterator[Event]:
    """Yield every event in the source of the daemon."""
    for path in sorted((ROOT / "server").rglob("*.py")):
        tree = ast.parse(path.read_text())
        levels = {
            id(argument): node.func.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            for argument in node.args
            if node.func.attr in LEVELS
        }
        for node in ast.walk(tree):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and text.startswith("event="):
                # what follows a colon is a sentence
                name, *fields = re.findall(r"(\w+)=", text.partition(": ")[0])
                assert name == "event"
                event = text.removeprefix("event=").split()[0].rstrip(":")
                yield Event(event, levels.get(id(node)), tuple(fields))


def test_every_event_is_on_the_page_with_level_and_fields() -> None:
    found = list(events())
    listed = {row[0]: row for row in rows("event")}
    assert {event.name for event in found} == set(listed)
    for event in found:
        _, level, fields, *_ = listed[event.name]
        assert event.level in (level, None), event.name
        assert event.fields == tuple(fields.split()), event.name


def test_every_event_that_is_a_warning_says_what_to_do() -> None:
    for name, level, _, meaning, advice in rows("event"):
        assert meaning and level in LEVELS, name
        assert advice or level in ("debug", "info"), name
