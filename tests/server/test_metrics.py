"""Counters, timings and refusals of one process, and the sums of several."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from whisper_stream.server.metrics import (
    BUCKET_SECONDS,
    Metrics,
    MetricsSnapshot,
    RateLimitFilter,
    RefusalCounter,
    Turnarounds,
)


def test_turnarounds_are_averaged_since_the_last_look() -> None:
    turnarounds = Turnarounds()
    assert turnarounds.take() is None
    turnarounds.add(0.5)
    turnarounds.add(1.5)
    assert turnarounds.take() == 1.0
    assert turnarounds.take() is None


def count(*seconds: float) -> Metrics:
    """Return metrics of a stream with these lags."""
    metrics = Metrics()
    for each in seconds:
        metrics.streams_opened += 1
        metrics.audio_seconds += 0.5
        metrics.errors["gap"] += 1
        metrics.refusals["key"] += 1
        metrics.lag.observe(each)
    return metrics


def test_snapshots_add_up() -> None:
    both = count(0.0, 1.0, 33.0).snapshot() + count(0.07, 2.0).snapshot() + MetricsSnapshot()
    assert both == count(0.0, 1.0, 33.0, 0.07, 2.0).snapshot()
    assert (both.streams_opened, both.audio_seconds) == (5, 2.5)
    assert (both.errors, both.refusals) == ({"gap": 5}, {"key": 5})


def test_a_value_on_a_bound_belongs_below_it() -> None:
    counts = count(0.05, 0.051, 32.0, 32.1).snapshot().lag.counts
    assert len(counts) == len(BUCKET_SECONDS) + 1
    assert [counts[0], counts[1], counts[-2], counts[-1]] == [1, 1, 1, 1]


def test_faults_are_errors_of_our_own() -> None:
    metrics = count(1.0)
    metrics.errors["bad_message"] += 1
    assert metrics.faults() == 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_is_counted_and_logged_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="whisper_stream")
    counts: Counter[str] = Counter()
    clock = Clock()
    refusals = RefusalCounter(counts, clock)
    for _ in range(1000):  # 25 seconds
        refusals.add("key")
        clock.now += 0.025
    refusals.add("origin")
    assert counts == {"key": 1000, "origin": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "event=refused reason=key count=1"
    assert lines[-1] == "event=refused reason=origin count=1"
    assert len(lines) == 4
    told = sum(int(line.rpartition("=")[2]) for line in lines[:-1])
    assert 780 <= told <= 820  # all up to the last line, after 20 seconds


def test_lines_of_a_library_pass_once_in_a_while() -> None:
    clock = Clock()
    limited = RateLimitFilter(clock)

    def passes(text: str) -> bool:
        return limited.filter(logging.LogRecord("x", logging.ERROR, "", 0, text, (), None))

    assert [passes("one"), passes("one"), passes("two")] == [True, False, True]
    clock.now += 10.0
    assert passes("one") and not passes("one")
    for number in range(300):  # what is remembered of them is bounded
        assert passes(f"kind {number}")
    assert len(limited) <= 100
