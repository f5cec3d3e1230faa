"""The interval of updates by the turnaround of jobs, when they are skipped, and when a lag is reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.streamer.events import Lag
from whisper_stream.streamer.session.cadence import Cadence, LagReporter


def after(cadence: Cadence, *seconds: float) -> float:
    """The interval after answers that took so long."""
    now = 100.0
    for took in seconds:
        cadence.begin_job(now)
        cadence.end_job(now + took)
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
    cadence.end_job(5.0)
    assert cadence.interval == 0.4
    cadence.begin_job(5.0)
    cadence.end_job(6.0)
    cadence.end_job(60.0)
    assert cadence.interval == pytest.approx(1.5)


def test_a_clock_that_goes_back_is_no_gain() -> None:
    cadence = Cadence(0.4)
    cadence.begin_job(10.0)
    cadence.end_job(3.0)
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


# Skipping


class Clock:
    """A live stream of which ``received`` seconds came, and its answers."""

    def __init__(self) -> None:
        self.cadence = Cadence(0.4)
        self._now = 50.0

    def answer(self, took: float, *, behind: float = 0.0, ahead: float = 0.0) -> bool:
        """Whether updates are skipped after this answer."""
        self.cadence.begin_job(self._now)
        self._now += took
        self.cadence.end_job(self._now, behind=behind, received=self._now + ahead)
        return self.cadence.skipping


def test_a_fast_engine_works_off_what_waits() -> None:
    clock = Clock()
    assert not any(clock.answer(0.1, behind=29.0) for _ in range(20))
    assert clock.answer(0.1, behind=31.0)
    assert not clock.answer(0.1, behind=0.5)


def test_slow_answers_are_forgiven_while_most_are_fast() -> None:
    clock = Clock()
    assert not any(clock.answer(took, behind=2.9) for took in [0.1, 0.1, 0.1, 1.5, 1.5] * 3)
    clock.answer(1.5, behind=2.9)
    assert clock.answer(1.5, behind=2.9)


def test_two_slow_answers_are_enough_far_behind() -> None:
    clock = Clock()
    assert not clock.answer(4.0, behind=4.0)
    assert clock.answer(4.0, behind=7.6)


def test_the_end_of_an_utterance_says_nothing_about_updates() -> None:
    cadence = Cadence(0.4)
    for now in range(10):
        cadence.begin_job(float(now))
        cadence.end_job(now + 0.9, behind=2.0, update=False)
    assert not cadence.skipping


def test_an_engine_with_less_time_to_spare_has_less_patience() -> None:
    clock = Clock()
    assert not any(clock.answer(0.25, behind=8.9) for _ in range(9))
    assert clock.answer(0.25, behind=9.1)


@pytest.mark.parametrize("took", [0.3, 0.6])
def test_a_busy_engine_works_nothing_off(took: float) -> None:
    """Its other streams would wait for updates that nobody needs any more."""
    clock = Clock()
    assert not any(clock.answer(took, behind=0.4) for _ in range(9))
    assert clock.answer(took, behind=0.5)


def test_it_goes_back_only_once_the_engine_has_time_to_spare() -> None:
    clock = Clock()
    clock.answer(1.0)
    assert clock.answer(1.0, behind=4.0)
    assert all(clock.answer(0.3) for _ in range(9))
    assert all([clock.answer(0.2), clock.answer(0.2)])
    assert not clock.answer(0.2)


def test_audio_that_comes_faster_than_it_is_spoken_is_not_worth_every_update() -> None:
    clock = Clock()
    assert not clock.answer(0.1, ahead=1.5)
    assert clock.answer(0.1, ahead=3.0)
    assert not clock.answer(0.1, ahead=0.0)


def test_a_microphone_whose_clock_is_a_little_fast_is_no_file() -> None:
    cadence = Cadence(0.4)
    hours = 8 * 3600.0
    cadence.begin_job(hours)
    cadence.end_job(hours, received=hours * 1.001)
    assert not cadence.skipping


# Lag


def test_less_than_two_seconds_are_not_reported() -> None:
    reporter = LagReporter()
    assert all(reporter.report(behind, 0.4) == [] for behind in (0.0, 0.5, 1.9, 0.0))


def test_a_lag_is_reported_in_steps_and_when_it_is_over() -> None:
    reporter = LagReporter()
    reported = [
        event for behind in (2.5, 3.0, 3.6, 3.0, 1.9, 0.0) for event in reporter.report(behind, 1.5)
    ]
    assert reported == [
        Lag(behind_seconds=2.5, interval_seconds=1.5),
        Lag(behind_seconds=3.6, interval_seconds=1.5),
        Lag(behind_seconds=0.0, interval_seconds=1.5),
    ]
