"""When a client is told how far its words are behind."""

from __future__ import annotations

from whisper_stream.streamer.events import Lag
from whisper_stream.streamer.session.commit import LagReporter


def test_less_than_two_seconds_are_not_worth_a_word() -> None:
    teller = LagReporter()
    assert all(teller.tell(behind, 0.4) == [] for behind in (0.0, 0.5, 1.9, 0.0))


def test_it_is_told_in_steps_and_when_it_is_over() -> None:
    teller = LagReporter()
    told = [
        event for behind in (2.5, 3.0, 3.6, 3.0, 1.9, 0.0) for event in teller.tell(behind, 1.5)
    ]
    assert told == [
        Lag(behind_seconds=2.5, interval_seconds=1.5),
        Lag(behind_seconds=3.6, interval_seconds=1.5),
        Lag(behind_seconds=0.0, interval_seconds=1.5),
    ]
