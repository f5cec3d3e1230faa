"""One stream: what its events say about scripted speech. The promises are in test_stream_properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from whisper_stream.streamer.commands import EndOfStream, Flush
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.errors import BufferFullError
from whisper_stream.streamer.events import (
    Commit,
    Done,
    Flushed,
    Gap,
    Lag,
    LanguageDetected,
    SegmentClosed,
    SpeechStarted,
    SpeechStopped,
    StreamWarning,
)
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import (
    ENGLISH,
    FakeDecoder,
    Played,
    Script,
    make_session,
    scripted,
    word_text,
)


def spoken(script: Script) -> str:
    return "".join(word_text(word) for word, _ in script.words)


def test_the_events_of_one_utterance_in_order() -> None:
    script = scripted([1.0] + [0.1] * 7, tail=2.0)
    stream = Played().play(script.audio)
    kinds = [type(event) for event in stream.ledger.events]
    assert kinds[0] is SpeechStarted
    assert kinds.index(SpeechStopped) < kinds.index(SegmentClosed)
    assert Commit in kinds[: kinds.index(SpeechStopped)]  # while still speaking
    (segment,) = stream.of(SegmentClosed)
    assert segment.language == "en"
    assert stream.text == spoken(script)
    stream.finish()
    assert stream.ledger.events[-1] == Done(samples=len(script.audio), words=8)


def test_silence_costs_no_decode() -> None:
    stream = Played().play(np.zeros(60 * SAMPLE_RATE, np.float32)).finish()
    assert stream.jobs == []
    assert stream.ledger.events == [Done(samples=60 * SAMPLE_RATE, words=0)]
    assert stream.session.statistics().silent_samples == 60 * SAMPLE_RATE


def test_an_empty_stream_is_done_at_once() -> None:
    stream = Played().finish()
    assert stream.ledger.events == [Done(samples=0, words=0)]
    assert stream.session.next_job(0.0) is None


def test_positions_stay_true_after_fifty_pauses() -> None:
    script = scripted([0.2, 0.1, 3.0] * 50)
    stream = Played().play(script.audio).finish()
    assert [w.start_sample for w in stream.ledger.words] == [first for _, first in script.words]


def test_long_speech_is_decoded_in_bounded_windows() -> None:
    config = StreamConfig(language="en", soft_window=4.0, max_window=8.0, buffer_seconds=20.0)
    script = scripted([0.1] * 200)
    stream = Played(config).play(script.audio).finish()
    assert stream.text == spoken(script)
    assert max(len(job.audio) for job in stream.jobs) <= 8 * SAMPLE_RATE
    assert any(job.prompt for job in stream.jobs)


def test_the_draft_is_the_rest_of_the_last_hypothesis() -> None:
    stream = Played(replace(ENGLISH, agreement=3)).play(scripted([0.1] * 12, tail=2.0).audio)
    drafted = [job for job in stream.jobs if job.draft]
    assert drafted
    for before, job in zip(stream.jobs, stream.jobs[1:], strict=False):
        if job.draft:
            said = FakeDecoder()(before).tokens
            new = job.prefix[len(before.prefix) :]
            assert (*new, *job.draft) == said


def test_without_conditioning_no_text_becomes_the_prompt() -> None:
    script = scripted([0.1] * 40, tail=4.0)
    config = StreamConfig(
        language="en", prompt="ab", condition_on_previous=False, soft_window=3.0, max_window=6.0
    )
    stream = Played(config).play(script.audio).finish()
    assert {job.prompt for job in stream.jobs} == {(ord("a"), ord("b"))}


def test_a_long_silence_drops_the_prompt() -> None:
    first = scripted([0.1] * 4, tail=15.0)
    second = scripted([0.1] * 4, tail=2.0, first_word=4)
    stream = Played().play(np.concatenate((first.audio, second.audio))).finish()
    assert stream.jobs[-1].prompt == ()
    assert stream.text == spoken(first) + spoken(second)


def test_a_flush_commits_what_was_said() -> None:
    script = scripted([0.1] * 6, tail=0.06)
    stream = Played().play(script.audio)
    assert stream.text != spoken(script)
    stream.ledger.flush("now")
    stream.run_jobs()
    assert stream.text == spoken(script)
    assert stream.ledger.events[-1] == Flushed(flush_id="now", sample=len(script.audio))


def test_flushes_in_silence_are_answered_at_once() -> None:
    stream = Played().play(np.zeros(SAMPLE_RATE, np.float32))
    assert stream.session.request(Flush(id="a")) == [Flushed(flush_id="a", sample=SAMPLE_RATE)]
    assert stream.session.request(Flush(id="a")) == [Flushed(flush_id="a", sample=SAMPLE_RATE)]


def test_a_language_is_detected_once_and_kept() -> None:
    script = scripted([0.1] * 6 + [3.0] + [0.1] * 6, tail=2.0)
    stream = Played(StreamConfig()).play(script.audio).finish()
    (detected,) = stream.of(LanguageDetected)
    assert (detected.language, detected.probability) == ("en", 0.9)
    assert stream.jobs[0].language is None
    assert {job.language for job in stream.jobs[1:]} == {"en"}


def test_a_given_language_is_not_announced() -> None:
    stream = Played().play(scripted([0.1] * 6, tail=2.0).audio).finish()
    assert stream.of(LanguageDetected) == []


def test_a_failed_update_loses_nothing() -> None:
    script = scripted([0.1] * 12, tail=0.2)
    stream = Played()
    first = round(1.3 * SAMPLE_RATE)
    stream.ledger.feed(script.audio[:first])
    assert stream.session.next_job(0.0) is not None
    stream.ledger.observe(stream.session.fail_job("no memory", 0.0))
    (warning,) = stream.of(StreamWarning)
    assert (warning.code, "no memory" in warning.message) == ("decode_failed", True)
    assert stream.session.next_job(0.0) is None  # not at once again
    stream.play(script.audio[first:]).finish()
    assert stream.text == spoken(script)


def test_a_failed_endpoint_is_a_gap_and_the_stream_goes_on() -> None:
    first, second = scripted([0.5], tail=2.0), scripted([0.5, 0.1], tail=2.0, first_word=5)
    stream = Played()
    stream.ledger.feed(first.audio)
    job = stream.session.next_job(0.0)
    assert job is not None
    assert job.endpoint
    stream.ledger.observe(stream.session.fail_job("no memory", 0.0))
    (gap,) = stream.of(Gap)
    assert (gap.end_sample - gap.start_sample, gap.reason) == (len(job.audio), "no memory")
    stream.play(second.audio).finish()
    assert stream.text == spoken(second)
    assert stream.session.statistics().lost_samples == len(job.audio)


def test_a_window_that_cannot_be_decoded_frees_its_room() -> None:
    config = StreamConfig(
        language="en", soft_window=3.0, max_window=4.0, buffer_seconds=10.0, context_seconds=1.0
    )
    stream = Played(config)
    audio = scripted([0.1] * 100).audio
    for at in range(0, len(audio), 1600):
        stream.ledger.feed(audio[at : at + 1600])
        if stream.session.next_job(0.0) is not None:
            stream.ledger.observe(stream.session.fail_job("no memory", 0.0))
    stream.ledger.observe(stream.session.request(EndOfStream()))
    while stream.session.next_job(0.0) is not None:
        stream.ledger.observe(stream.session.fail_job("no memory", 0.0))
    assert stream.session.finished
    statistics = stream.session.statistics()
    assert statistics.decoded_samples == 0
    assert statistics.lost_samples > 0.9 * len(audio)


def test_an_utterance_without_speech_commits_nothing() -> None:
    stream = Played()
    stream.ledger.feed(scripted([0.5], tail=2.0).audio)
    job = stream.session.next_job(0.0)
    assert job is not None
    heard = replace(FakeDecoder()(job), no_speech_prob=0.9, avg_logprob=-2.0)
    stream.ledger.observe(stream.session.finish_job(heard, 0.0))
    stream.finish()
    assert stream.ledger.words == []
    assert stream.of(SegmentClosed) == []


def test_the_last_partial_is_withdrawn() -> None:
    stream = Played().play(scripted([0.1] * 6, tail=0.0).audio)
    assert stream.ledger.partial
    stream.finish()
    assert stream.ledger.partial == ()


def test_more_than_the_room_is_refused_and_changes_nothing() -> None:
    stream = Played()
    with pytest.raises(BufferFullError):
        stream.session.feed(np.zeros(stream.session.room + 1, np.float32))
    assert stream.session.statistics().received_samples == 0
    script = scripted([0.1] * 3)
    stream.play(script.audio).finish()
    assert stream.text == spoken(script)


def test_no_audio_can_be_fed_after_the_end() -> None:
    session = make_session()
    session.request(EndOfStream())
    with pytest.raises(RuntimeError, match="no more audio can be fed"):
        session.feed(np.zeros(1600, np.float32))


def test_one_job_at_a_time_and_none_answered_twice() -> None:
    session, decoder = make_session(), FakeDecoder()
    result: DecodeResult | None = None
    with pytest.raises(RuntimeError, match="no job is out"):
        session.fail_job("x", 0.0)
    session.feed(scripted([0.1] * 6).audio)
    job: DecodeJob | None = session.next_job(0.0)
    assert job is not None
    assert session.next_job(0.0) is None
    result = decoder(job)
    session.finish_job(result, 0.0)
    with pytest.raises(RuntimeError, match="no job is out"):
        session.finish_job(result, 0.0)


def test_a_stream_that_falls_behind_is_told_and_told_when_it_has_caught_up() -> None:
    script = scripted([0.1] * 40, tail=1.0)
    stream = Played()
    stream.ledger.feed(script.audio[:32_000])
    job = stream.session.next_job(0.0)
    assert job is not None
    stream.ledger.feed(script.audio[32_000:])  # it was spoken while the engine was busy
    stream.ledger.observe(stream.session.finish_job(FakeDecoder()(job), 0.0))
    (lag,) = stream.of(Lag)
    behind = (len(script.audio) - len(job.audio)) / SAMPLE_RATE
    assert lag.behind_seconds == pytest.approx(behind, abs=0.7)
    stream.finish()
    assert stream.of(Lag)[-1].behind_seconds == 0.0
