"""Refusals are counted one by one, and logged now and then."""

from __future__ import annotations

import logging
from collections import Counter

import pytest
from whisper_stream.server.metrics import Refusals, Seldom


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_flood_is_counted_and_logged_in_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="whisper_stream")
    counts: Counter[str] = Counter()
    clock = Clock()
    refusals = Refusals(counts, clock)
    for _ in range(1000):  # 25 seconds
        refusals.note("key")
        clock.now += 0.025
    refusals.note("origin")
    assert counts == {"key": 1000, "origin": 1}
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "event=refused reason=key count=1"
    assert lines[-1] == "event=refused reason=origin count=1"
    assert len(lines) == 4
    told = sum(int(line.rpartition("=")[2]) for line in lines[:-1])
    assert 780 <= told <= 820  # all up to the last line, after 20 seconds


def test_lines_of_a_library_pass_once_in_a_while() -> None:
    clock = Clock()
    seldom = Seldom(clock)

    def passes(text: str) -> bool:
        return seldom.filter(logging.LogRecord("x", logging.ERROR, "", 0, text, (), None))

    assert [passes("one"), passes("one"), passes("two")] == [True, False, True]
    clock.now += 10.0
    assert passes("one") and not passes("one")
    for number in range(300):  # what is remembered of them is bounded
        assert passes(f"kind {number}")
    assert len(seldom._logged) <= 100
