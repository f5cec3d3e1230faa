"""How far apart updates are, by how long answers take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.cadence import Cadence


def after(cadence: Cadence, *seconds: float) -> float:
    """The interval after answers that took so long."""
    now = 100.0
    for took in seconds:
        cadence.asked(now)
        cadence.answered(now + took)
        now += took + 1.0
    return cadence.interval


def test_fast_answers_leave_the_least_interval() -> None:
    cadence = Cadence(0.4)
    assert cadence.interval == 0.4
    assert after(cadence, 0.1, 0.2, 0.1) == 0.4


def test_a_slow_answer_counts_at_once() -> None:
    assert after(Cadence(0.4), 2.0) == pytest.approx(3.0)


def test_a_single_answer_does_not_make_up_for_many_slow_ones() -> None:
    assert after(Cadence(0.4), 2.0, 2.0, 2.0, 0.0) == pytest.approx(0.7 * 3.0)


def test_it_comes_back_once_answers_are_fast() -> None:
    cadence = Cadence(0.4)
    after(cadence, 2.0)
    intervals = [after(cadence, 0.05) for _ in range(20)]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[-1] == 0.4


def test_an_answer_counts_once_and_only_if_it_was_asked_for() -> None:
    cadence = Cadence(0.4)
    cadence.answered(5.0)
    assert cadence.interval == 0.4
    cadence.asked(5.0)
    cadence.answered(6.0)
    cadence.answered(60.0)
    assert cadence.interval == pytest.approx(1.5)


def test_a_clock_that_goes_back_is_no_gain() -> None:
    cadence = Cadence(0.4)
    cadence.asked(10.0)
    cadence.answered(3.0)
    assert cadence.interval == 0.4


@given(
    least=st.floats(0.1, 2.0),
    answers=st.lists(st.floats(0.0, 60.0), max_size=12),
    last=st.floats(0.0, 60.0),
)
def test_it_is_never_less_than_asked_for_nor_more_than_the_slowest_answer_explains(
    least: float, answers: list[float], last: float
) -> None:
    cadence = Cadence(least)
    interval = after(cadence, *answers, last)
    assert least <= interval <= max(least, 1.5 * max([*answers, last])) + 1e-6


@given(took=st.floats(0.5, 60.0))
def test_with_steady_answers_the_engine_keeps_a_third_of_its_time(took: float) -> None:
    assert after(Cadence(0.4), *[took] * 5) == pytest.approx(1.5 * took, rel=1e-6)
