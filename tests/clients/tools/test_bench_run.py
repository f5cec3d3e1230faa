"""One recording through a stream by each of three clocks, and what it costs."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest
from whisper_stream.clients.tools.bench_metrics import committed_words
from whisper_stream.clients.tools.bench_run import MeteredBackend, PeakMemory, run_stream
from whisper_stream.streamer.engine.backend import SequentialBackend
from whisper_stream.streamer.events import Done
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import FakeDecoder, make_session, scripted, word_text


class FakeBackend(SequentialBackend):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = FakeDecoder()

    def decode_one(self, job: DecodeJob) -> DecodeResult:
        return self.decoder(job)


def test_the_virtual_clock_counts_what_each_update_takes() -> None:
    script = scripted([0.5] + [0.1] * 8, tail=0.5)
    meter = MeteredBackend(FakeBackend())
    run = run_stream(make_session(), script.audio, meter, clock="virtual", costs=[0.3] * 50)
    last = run.events[-1]
    assert isinstance(last.event, Done)
    assert 0.0 < last.time - run.audio_seconds <= 0.6  # one update, or one and a part of another
    assert run.audio_seconds == len(script.audio) / 16_000
    texts = [word.text for word in committed_words(run.events)]
    assert texts == [word_text(word) for word, _ in script.words]


def test_on_the_free_clock_updates_take_no_time() -> None:
    script = scripted([0.5] + [0.1] * 8, tail=0.5)
    meter = MeteredBackend(FakeBackend())
    run = run_stream(make_session(), script.audio, meter, clock="free")
    assert run.events[-1].time == pytest.approx(run.audio_seconds)
    assert run.decoder_steps == meter.steps > 0
    assert len(run.costs) == len(meter.costs)


def test_without_drafts_the_words_are_the_same_at_more_steps() -> None:
    script = scripted([0.5] + [0.1] * 12, tail=0.5)
    runs = []
    for drafts in (True, False):
        backend = FakeBackend()
        meter = MeteredBackend(backend, drafts=drafts)
        runs.append(run_stream(make_session(), script.audio, meter, clock="free"))
        assert any(job.draft for job in backend.decoder.jobs) == drafts
    ours, plain = runs
    assert committed_words(ours.events) == committed_words(plain.events)
    assert ours.decoder_steps < plain.decoder_steps


def test_in_real_time_audio_comes_as_it_is_spoken() -> None:
    script = scripted([0.2, 0.1], tail=0.3)
    backend = MeteredBackend(FakeBackend())

    def submit(job: DecodeJob) -> Future[DecodeResult]:
        future: Future[DecodeResult] = Future()
        future.set_result(backend.decode_one(job))
        return future

    run = run_stream(make_session(), script.audio, backend, clock="real", submit=submit)
    texts = [word.text for word in committed_words(run.events)]
    assert texts == [word_text(word) for word, _ in script.words]
    times = [timed.time for timed in run.events]
    assert times == sorted(times)
    assert times[-1] >= run.audio_seconds


def test_a_failed_update_ends_a_run_in_real_time() -> None:
    def submit(job: DecodeJob) -> Future[DecodeResult]:
        future: Future[DecodeResult] = Future()
        future.set_exception(ValueError("broken"))
        return future

    meter = MeteredBackend(FakeBackend())
    with pytest.raises(ValueError, match="broken"):
        run_stream(make_session(), scripted([0.1]).audio, meter, clock="real", submit=submit)


def test_peak_memory_falls_when_it_begins_anew() -> None:
    big = bytearray(200_000_000)
    held = PeakMemory().megabytes()
    del big
    assert 200 < held
    if Path("/proc/self/clear_refs").exists():
        assert PeakMemory().megabytes() < held - 100
