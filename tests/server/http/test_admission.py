"""Admission by load and by turnaround, without a clock."""

from __future__ import annotations

import pytest
from whisper_stream.server.http.admission import Admission, LoadSample, RealTimeShare
from whisper_stream.streamer.engine.engine import EngineStatistics


def busy(seconds: float) -> EngineStatistics:
    return EngineStatistics(
        queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=seconds
    )


def test_streams_are_admitted_by_what_they_cost() -> None:
    """Each stream takes an eighth of the engine: seven fit below nine tenths."""
    admission = Admission(0.9)
    streams, spent = 0, 0.0
    for second in range(400):
        admission.observe(float(second), busy(spent), streams)
        if second % 20 == 0 and admission.admits(float(second), streams):
            admission.add(float(second))
            streams += 1
        spent += streams / 8
    assert streams == 7
    assert admission.load == pytest.approx(7 / 8, abs=0.02)


def test_a_rush_is_held_back_before_it_shows_in_the_load() -> None:
    admission = Admission(0.9)
    spent = 0.0
    for second in range(60):
        admission.observe(float(second), busy(spent), 1)
        spent += 0.2
    let_in = 1
    while admission.admits(60.0, let_in):
        admission.add(60.0)
        let_in += 1
    assert let_in == 4  # a fifth each, four fifths in all


def turnaround(streams: int) -> float:
    """Seconds that an answer takes, as measured of tiny.en on two cores: updates grow rarer, and longer."""
    at_once, waiting = 0.04, 0.0
    if streams < 16:
        waiting = streams * 0.017 / (1.5 * (1 - streams * 0.062))
    return max(at_once, waiting) if streams < 16 else 60.0


def fill(admission: Admission, every: int, seconds: int) -> int:
    """Streams that are let in when one asks every so many seconds."""
    streams, spent = 0, 0.0
    for second in range(seconds):
        sample = LoadSample(turnaround=turnaround(streams) if streams else None)
        admission.observe(float(second), busy(spent), streams, sample)
        if second % every == 0 and admission.admits(float(second), streams):
            admission.add(float(second))
            streams += 1
        spent += min(0.97, streams * 0.11)
    return streams


@pytest.mark.parametrize("every", [1, 3, 7])
def test_a_busy_engine_takes_more_until_words_would_be_late(every: int) -> None:
    """The load says nine are all; but updates become rarer, and thirteen keep their delay."""
    admission = Admission(0.9, 4.0)
    streams = fill(admission, every, 900)
    delay = 1.6 + 2.5 * turnaround(streams)
    assert streams >= 11 and delay <= 4.0
    by_load = Admission(0.9)
    assert fill(by_load, every, 900) <= 9


def test_a_rush_beyond_the_load_is_let_in_one_at_a_time() -> None:
    admission = Admission(0.5, 4.0)
    for second in range(60):
        admission.observe(float(second), busy(second * 0.6), 6, LoadSample(turnaround=0.2))
    assert admission.admits(60.0, 6)
    admission.add(60.0)
    assert not admission.admits(60.5, 7)
    assert admission.admits(65.5, 7)


def test_what_is_played_faster_than_speech_takes_nobody_s_place() -> None:
    """One client plays an hour at nine times its pace, and the engine has no idle moment."""
    admission = Admission(0.9, 4.0)
    for second in range(60):
        admission.observe(float(second), busy(float(second)), 1, LoadSample(live=1 / 9))
    assert admission.load == pytest.approx(1 / 9, rel=0.01)
    assert admission.admits(60.0, 1)


@pytest.mark.parametrize("streams", [1, 2, 5])
def test_an_engine_with_time_to_spare_takes_streams_however_few_there_are(streams: int) -> None:
    """A second stream does not make answers three times as slow: those of endpoints take half a second."""
    admission = Admission(0.9, 4.0)
    for second in range(60):
        admission.observe(float(second), busy(second * 0.1), streams, LoadSample(turnaround=0.5))
    assert admission.admits(60.0, streams)
    admission.add(60.0)
    assert admission.admits(60.1, streams + 1)


def test_a_refusal_names_its_reason() -> None:
    slow, full = Admission(0.9, 4.0), Admission(0.5, 4.0)
    for second in range(120):
        slow.observe(float(second), busy(second * 0.3), 1, LoadSample(turnaround=1.5))
        full.observe(float(second), busy(second * 0.97), 7, LoadSample(turnaround=0.8))
    assert not slow.admits(120.0, 1) and not full.admits(120.0, 7)
    assert slow.why_not(1) == "takes 1.5 s to answer, with 1 stream"
    assert full.why_not(7) == "is 97% busy with 7 streams"


def test_an_engine_that_hangs_is_not_taken_for_an_idle_one() -> None:
    admission = Admission(0.9, 4.0)
    for second in range(60):
        admission.observe(float(second), busy(second * 0.3), 4, LoadSample(turnaround=1.0))
    stuck = busy(60 * 0.3)._replace(queued=4, running=1)
    for second in range(60, 120):
        admission.observe(float(second), stuck, 4, LoadSample())
    assert not admission.admits(120.0, 4)
    for second in range(120, 200):
        admission.observe(float(second), busy(60 * 0.3), 4, LoadSample())
    assert admission.admits(200.0, 4)


def test_speech_is_live_and_what_is_played_faster_is_not() -> None:
    """A stream at nine times the pace of speech beside one at its pace: two parts in ten are live."""
    share = RealTimeShare()
    shares = [share.update(float(s), {"a": 1.0 * s, "b": 9.0 * s}) for s in range(30)]
    assert shares[0] == 1.0
    assert shares[-1] == pytest.approx(0.2)


def test_streams_that_come_and_go_and_are_silent() -> None:
    share = RealTimeShare()
    assert share.update(0.0, {}) == 1.0
    assert share.update(1.0, {"a": 100.0}) == 1.0  # it may have had that since yesterday
    assert share.update(2.0, {"a": 101.0, "b": 50.0}) == 1.0
    assert share.update(3.0, {"b": 51.0}) == 1.0
