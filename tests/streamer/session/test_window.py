"""The windows of a stream: where its jobs begin and end, and what becomes of their audio."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat

import numpy as np
import pytest
from whisper_stream.streamer.config import SAMPLE_RATE
from whisper_stream.streamer.events import Gap, SegmentClosed, SpeechStopped
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import (
    ENGLISH,
    FakeDecoder,
    Played,
    Samples,
    make_session,
    scripted,
    word_text,
)

SMALL = replace(ENGLISH, soft_window=4.0, max_window=6.0)
LONG_SCRIPT = scripted([0.1] * 60, tail=4.0)


def say_nothing(job: DecodeJob, result: DecodeResult) -> DecodeResult:
    return replace(result, words=(), tokens=())


def job_ends(pieces: list[tuple[float, Samples]], costs: Iterator[float]) -> list[int]:
    """Feed each piece at its time, run each job in the next of ``costs`` -> where their audio ends."""
    session, decoder, ends = make_session(), FakeDecoder(), []
    job: DecodeJob | None = None
    done_at = 0.0
    for now, samples in pieces:
        if job is not None and done_at <= now:
            session.finish_job(decoder(job), done_at)
            job = None
        session.feed(samples)
        while job is None and (job := session.next_job(now)) is not None:
            ends.append(len(job.audio))
            done_at = now + next(costs)
            if done_at == now:
                session.finish_job(decoder(job), now)
                job = None
    return ends


GRID = [round((1.0 + 0.4 * step) * 16_000) for step in range(30)]
SPEECH = scripted([0.0] + [0.1] * 26).audio
LIVE = [(at / SAMPLE_RATE, SPEECH[at : at + 1600]) for at in range(0, len(SPEECH), 1600)]


def test_updates_end_where_the_clock_says_and_not_where_the_audio_does() -> None:
    late = [(len(SPEECH) / SAMPLE_RATE, SPEECH)]  # at once, as after a lost connection
    for pieces in (LIVE, late):
        ends = job_ends(pieces, repeat(0.0))
        assert ends[:-1] == GRID[: len(ends) - 1]
        assert len(ends) > 20


def test_updates_after_a_slow_engine_are_back_on_the_grid() -> None:
    """Some are skipped while it is slow; later ones end where they would have anyway."""
    ends = job_ends(LIVE, chain([0.0] * 2, [1.0] * 3, repeat(0.0)))
    assert ends[:2] == GRID[:2]
    assert len(ends) < len(job_ends(LIVE, repeat(0.0)))
    assert ends[-4:-1] == GRID[22:25]


def test_the_end_of_an_utterance_is_decoded_whole_and_accounted_for() -> None:
    stream = Played().play(scripted([0.5], tail=2.0).audio)
    last = stream.jobs[-1]
    assert last.endpoint
    account = stream.session.statistics()
    assert account.decoded_samples == len(last.audio)
    assert account.lost_samples == 0
    stream.finish()
    account = stream.session.statistics()
    assert account.silent_samples == account.received_samples - len(last.audio)


def test_a_full_window_is_cut_but_for_its_last_two_seconds() -> None:
    stream = Played(SMALL, say_nothing).play(SPEECH[: round(6.2 * SAMPLE_RATE)])
    full = stream.jobs[-1]
    assert full.endpoint and len(full.audio) == 6 * SAMPLE_RATE
    decoded = stream.session.statistics().decoded_samples
    assert abs(decoded - 4 * SAMPLE_RATE) <= SAMPLE_RATE // 10  # at the quietest place near
    after = stream.play(SPEECH[round(6.2 * SAMPLE_RATE) :]).jobs[stream.jobs.index(full) + 1]
    assert np.array_equal(after.audio, SPEECH[decoded : decoded + len(after.audio)])


def test_a_full_window_that_fails_in_a_pause_loses_no_more_than_the_speech() -> None:
    """The utterance turns out to have ended inside that window: its end was once sought before its start."""
    config = replace(ENGLISH, soft_window=4.0, max_window=4.0, endpoint_silence=1.0)
    speech = scripted(
        [0.0] + [0.1] * 8, tail=2.0
    ).audio  # 3.5 s, and a pause that the window ends in
    stream = Played(config)
    stream.ledger.feed(speech[: 4 * SAMPLE_RATE])
    while (job := stream.session.next_job(0.0)) is not None and not job.endpoint:
        stream.ledger.observe(stream.session.finish_job(FakeDecoder()(job), 0.0))
    assert job is not None and len(job.audio) == 4 * SAMPLE_RATE
    stream.ledger.observe(stream.session.fail_job("no memory", 0.0))
    (gap,) = stream.of(Gap)
    assert 3.4 * SAMPLE_RATE < gap.end_sample < 3.6 * SAMPLE_RATE
    stream.play(speech[4 * SAMPLE_RATE :]).finish()
    assert stream.session.statistics().lost_samples == gap.end_sample


def test_context_is_decoded_twice_and_counted_once() -> None:
    stream = Played().play(scripted([0.1] * 4 + [1.0] + [0.1] * 4, tail=2.0).audio).finish()
    first, second = [job for job in stream.jobs if job.endpoint]
    account = stream.session.statistics()
    assert len(first.audio) + len(second.audio) > account.decoded_samples
    assert second.prefix[: len(first.prefix)] == first.prefix  # its words are there already


def test_a_segment_longer_than_the_most_is_closed_at_a_committed_word() -> None:
    config = replace(ENGLISH, max_segment=2.0, soft_window=28.0)  # the window is not left either
    stream = Played(config).play(LONG_SCRIPT.audio).finish()
    assert len(stream.of(SpeechStopped)) == 1  # nobody paused
    segments = stream.of(SegmentClosed)
    assert len(segments) > 5
    for segment in segments[:-1]:
        seconds = (segment.end_sample - segment.start_sample) / SAMPLE_RATE
        assert 2.0 <= seconds <= 3.2  # and what one update committed
    assert [word.text for segment in segments for word in segment.words] == [
        word_text(word) for word, _ in LONG_SCRIPT.words
    ]


def test_slow_answers_widen_the_interval_of_updates_and_fast_ones_narrow_it() -> None:
    session, decoder, now, at = make_session(), FakeDecoder(), 0.0, 0
    audio = scripted([0.1] * 120).audio

    def next_window(took: float) -> int:
        """Feeds until a job is there, answers it ``took`` seconds later -> the end of its audio."""
        nonlocal now, at
        job = session.next_job(now)
        while job is None:
            session.feed(audio[at : at + 1600])
            at, now = at + 1600, now + 0.1
            job = session.next_job(now)
        asked = at
        piled_up = round(took * 10) * 1600  # meanwhile
        session.feed(audio[at : at + piled_up])
        at, now = at + piled_up, now + took
        session.finish_job(decoder(job), now)
        return asked

    def interval(took: float) -> float:
        return (next_window(took) - next_window(took)) / -SAMPLE_RATE

    next_window(0.0)
    assert interval(0.0) == pytest.approx(0.4, abs=0.05)
    for _ in range(3):
        next_window(1.0)
    assert interval(1.0) == pytest.approx(1.5, abs=0.15)
    for _ in range(8):
        next_window(0.0)
    assert interval(0.0) == pytest.approx(0.4, abs=0.05)
