"""What every stream promises, whatever the audio, the cuts, the load and the decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from whisper_stream.model.whisper import Whisper
from whisper_stream.streamer.backend import BackendConfig, WhisperBackend
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.events import Commit, Event, Lag, Word
from whisper_stream.streamer.ingest import PcmIngest
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session import StreamSession
from whisper_stream.streamer.simulator import simulate
from whisper_stream.streamer.vad import WebRtcDetector

from .helpers import (
    WORD_SAMPLES,
    ChaoticDecoder,
    FakeDecoder,
    Ledger,
    Script,
    committed_words,
    drain,
    make_session,
    pcm16,
    scripted,
    word_text,
)

Samples = NDArray[np.float32]

relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# gaps between words, in seconds: inside a phrase, a short pause, an endpoint, a long silence
GAPS = st.lists(
    st.sampled_from([0.06, 0.1, 0.15, 0.2, 0.45, 0.8, 1.1, 2.5, 9.0]), min_size=1, max_size=50
)

CONFIGS = st.builds(
    StreamConfig,
    language=st.sampled_from([None, "en"]),
    prompt=st.sampled_from(["", "Vocabulary", "x" * 300]),
    agreement=st.sampled_from([2, 3]),
    update_interval=st.sampled_from([0.2, 0.5, 1.5]),
    endpoint_silence=st.sampled_from([0.05, 0.3, 0.6, 1.5]),
    preroll=st.sampled_from([0.0, 0.4]),
    soft_window=st.sampled_from([1.5, 4.0]),
    max_window=st.sampled_from([4.0, 7.5]),
    commit_margin=st.sampled_from([0.0, 0.2]),
    context_silence=st.sampled_from([0.0, 2.0]),
    context_seconds=st.sampled_from([0.0, 5.0]),
    buffer_seconds=st.sampled_from([8.5, 20.0]),
    condition_on_previous=st.booleans(),
    policy=st.sampled_from(["local-agreement", "align-att", "either"]),
    attention_margin=st.sampled_from([0.05, 0.6, 1.2]),
    show_margin=st.sampled_from([0.0, 0.15]),
    max_segment=st.sampled_from([1.0, 3.0, 30.0]),
    languages=st.sampled_from([(), ("en", "de")]),
    hotwords=st.sampled_from(["", "Nguyen"]),
    carry_prompt=st.booleans(),
)


def scripts(gaps: st.SearchStrategy[list[float]] = GAPS) -> st.SearchStrategy[Script]:
    return st.builds(scripted, gaps, tail=st.sampled_from([0.0, 0.2, 3.0]))


def texts(words: list[Word]) -> list[str]:
    return [word.text for word in words]


# -- Any interleaving


class Rig:
    """A session, its decoder, and at most one job out, driven by operations."""

    def __init__(self, session: StreamSession, audio: Samples, decode: object) -> None:
        assert callable(decode)
        self.ledger = Ledger(session)
        self.session = session
        self._audio = audio
        self._decode = decode
        self._job: DecodeJob | None = None
        self._flushes = 0

    def run(self, operation: str, amount: int) -> None:
        match operation:
            case "feed":
                at = self.ledger.fed
                self.ledger.feed(self._audio[at : at + min(amount, self.session.room)])
            case "flush":
                self._flushes += 1
                self.ledger.flush(str(self._flushes))
            case "poll":
                self.poll()
            case "done":
                self.done()
            case "fail":
                self.fail()

    def poll(self) -> bool:
        if self._job is None and (job := self.session.next_job(0.0)) is not None:
            assert 0 < len(job.audio) <= 30 * SAMPLE_RATE
            # prompt, prefix and draft behind <|startofprev|> and at most four others, and one more
            assert len(job.prompt) <= 223
            assert 6 + len(job.prompt) + len(job.prefix) + len(job.draft) <= 448
            self._job = job
        return self._job is not None

    def done(self) -> None:
        if self._job is not None:
            result: DecodeResult = self._decode(self._job)
            self._job = None
            self.ledger.observe(self.session.job_done(result, 0.0))

    def fail(self) -> None:
        if self._job is not None:
            self._job = None
            self.ledger.observe(self.session.job_failed("out of memory", 0.0))

    def settle(self, *, fail: bool = False) -> None:
        """Runs whatever jobs there are; must come to rest without new audio."""
        for _ in range(200):
            if not self.poll():
                return
            if fail:
                self.fail()
            else:
                self.done()
        raise AssertionError("jobs go on for ever without new audio")

    def feed_rest(self, *, fail: bool) -> None:
        """A client that waits for room must get all its audio in."""
        while self.ledger.fed < len(self._audio):
            if self.session.room == 0:
                self.settle(fail=fail)
                assert self.session.room > 0, "full, and nothing to decode: a deadlock"
            self.run("feed", SAMPLE_RATE)

    def finish(self, *, fail: bool = False) -> None:
        self.ledger.observe(self.session.finish())
        self.settle(fail=fail)
        assert self.session.finished


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), st.integers(1, 40_000)),
        st.tuples(st.just("feed"), st.sampled_from([1, 100, 320, 1600, 8000, 160_000])),
        st.tuples(st.sampled_from(["poll", "poll", "done", "done", "fail", "flush"]), st.just(0)),
    ),
    max_size=120,
)


@settings(relaxed, max_examples=60)
@given(
    script=scripts(),
    config=CONFIGS,
    operations=OPERATIONS,
    chaos=st.none() | st.integers(0, 1000),
    fail_rest=st.booleans(),
    fail_end=st.booleans(),
)
def test_promises_hold_under_any_interleaving(
    script: Script,
    config: StreamConfig,
    operations: list[tuple[str, int]],
    chaos: int | None,
    fail_rest: bool,
    fail_end: bool,
) -> None:
    decode = FakeDecoder() if chaos is None else ChaoticDecoder(chaos)
    rig = Rig(make_session(config), script.audio, decode)
    for operation, amount in operations:
        rig.run(operation, amount)
    rig.feed_rest(fail=fail_rest)
    rig.finish(fail=fail_end)


@relaxed
@given(
    script=scripts(),
    config=CONFIGS,
    operations=OPERATIONS.map(lambda ops: [op for op in ops if op[0] not in ("fail", "flush")]),
)
def test_every_word_said_is_committed_once_and_in_place(
    script: Script, config: StreamConfig, operations: list[tuple[str, int]]
) -> None:
    rig = Rig(make_session(config), script.audio, FakeDecoder())
    for operation, amount in operations:
        rig.run(operation, amount)
    rig.feed_rest(fail=False)
    rig.finish()
    assert texts(rig.ledger.words) == [word_text(word) for word, _ in script.words]
    for word, (_, first) in zip(rig.ledger.words, script.words, strict=True):
        assert abs(word.start_sample - first) <= 1


@relaxed
@given(script=scripts(), points=st.lists(st.integers(0, 900_000), max_size=12))
def test_flushed_means_committed(script: Script, points: list[int]) -> None:
    """At ``Flushed`` every whole word before the flush is committed, and a flush is always answered."""
    session = make_session()
    ledger, decoder = Ledger(session), FakeDecoder()
    points = sorted(min(point, len(script.audio)) for point in points)
    # a flush inside a word cuts it in two: what is heard of it is nobody's promise
    spared = [
        (word_text(word), first + WORD_SAMPLES)
        for word, first in script.words
        if not any(first < point < first + WORD_SAMPLES for point in points)
    ]
    for index, point in enumerate(points):
        while ledger.fed < point:
            ledger.feed(script.audio[ledger.fed : min(point, ledger.fed + 8000)])
            drain(ledger, decoder)
        ledger.flush(str(index))
        drain(ledger, decoder)
        assert ledger.flushes == []
        assert {text for text, end in spared if end <= point} <= set(texts(ledger.words))
    ledger.observe(session.finish())
    drain(ledger, decoder)
    assert session.finished


def test_a_stretch_of_silence_never_fills_the_buffer() -> None:
    session = make_session()
    ledger, decoder = Ledger(session), FakeDecoder()
    script = scripted([0.5, 0.1, 0.1], tail=0.05)
    for at in range(0, len(script.audio), 1600):
        ledger.feed(script.audio[at : at + 1600])
        drain(ledger, decoder)
    ledger.flush("mid-speech")
    drain(ledger, decoder)
    for _ in range(1200):
        ledger.feed(np.zeros(1600, np.float32))
        drain(ledger, decoder)
    assert session.room > 50 * SAMPLE_RATE
    ledger.flush("later")
    drain(ledger, decoder)
    assert ledger.flushes == []


def test_dense_speech_fits_the_decoder() -> None:
    """Fourteen tokens a second in a full window, behind a full prompt."""
    session = make_session(StreamConfig(language="en", prompt="y" * 400, soft_window=28.0))
    ledger = Ledger(session)

    def decode(job: DecodeJob) -> DecodeResult:
        assert 6 + len(job.prompt) + len(job.prefix) + len(job.draft) <= 448
        result = FakeDecoder()(job)
        words = tuple(
            replace(word, tokens=tuple(word.tokens[0] * 8 + i for i in range(5)))
            for word in FakeDecoder()(replace(job, prefix=())).words
        )
        forced = len(job.prefix) // 5
        words = words[forced:]
        return replace(result, words=words, tokens=tuple(t for w in words for t in w.tokens))

    audio = scripted([0.06] * 250).audio
    for at in range(0, len(audio), 8000):
        ledger.feed(audio[at : at + 8000])
        while (job := session.next_job(0.0)) is not None:
            ledger.observe(session.job_done(decode(job), 0.0))


# -- Any chunking


def cuts(length: int, sizes: list[int]) -> Iterator[tuple[int, int]]:
    at = turn = 0
    while at < length:
        end = min(length, at + sizes[turn % len(sizes)])
        yield at, end
        at, turn = end, turn + 1


# mostly one large chunk after some tiny ones, so that a run stays short
SIZES = st.lists(
    st.one_of(st.integers(1, 9), st.integers(10, 5000), st.integers(5000, 320_000)),
    min_size=1,
    max_size=8,
).map(lambda sizes: [*sizes, 40_001])


@relaxed
@given(script=scripts(), sizes=SIZES, config=CONFIGS, chaos=st.booleans())
@example(  # a full window was once cut after the end of its utterance
    script=scripted([0.06, 0.06, 0.06, 0.1, 1.1], tail=3.0),
    sizes=[1, 40_001],
    config=StreamConfig(
        update_interval=0.2,
        endpoint_silence=1.5,
        preroll=0.0,
        soft_window=1.5,
        max_window=4.0,
        commit_margin=0.0,
        context_silence=0.0,
        context_seconds=0.0,
        buffer_seconds=8.5,
        condition_on_previous=False,
    ),
    chaos=True,
)
def test_bytes_of_any_chunking_give_the_same_events(
    script: Script, sizes: list[int], config: StreamConfig, chaos: bool
) -> None:
    data = pcm16(script.audio)

    def run(chunks: list[bytes]) -> list[Event]:
        reader = PcmIngest("s16le", SAMPLE_RATE, 1)
        session = make_session(config)
        decode = ChaoticDecoder() if chaos else FakeDecoder()
        timed = simulate(session, (reader.push(chunk) for chunk in chunks), decode)
        return [item.event for item in timed]

    assert run([data[at:end] for at, end in cuts(len(data), sizes)]) == run([data])


@relaxed
@given(
    script=scripts(),
    sizes=SIZES,
    every=st.sampled_from([4_000, 16_000, 50_001, 130_000]),
    config=CONFIGS,
)
def test_a_session_polled_at_the_same_samples_does_the_same(
    script: Script, sizes: list[int], every: int, config: StreamConfig
) -> None:
    """No simulator in between: chunks are fed as they are, jobs asked for at fixed positions."""
    config = replace(config, buffer_seconds=40.0)

    def run(chunk_sizes: list[int]) -> tuple[list[Event], list[tuple[int, tuple[int, ...]]]]:
        session, decoder = make_session(config), FakeDecoder()
        ledger = Ledger(session)
        for at in range(0, len(script.audio), every):
            poll = script.audio[at : at + every]
            for start, end in cuts(len(poll), chunk_sizes):
                ledger.feed(poll[start:end])
            drain(ledger, decoder)
        ledger.observe(session.finish())
        drain(ledger, decoder)
        assert session.finished
        return ledger.events, [(len(job.audio), job.prefix) for job in decoder.jobs]

    assert run(sizes) == run([10**9])


# -- Any delays


def live(
    config: StreamConfig,
    audio: Samples,
    decode: Callable[[DecodeJob], DecodeResult],
    *,
    sizes: Sequence[int] = (1600,),
    late: Sequence[float] = (0.0,),
    costs: Sequence[float] = (0.0,),
    requests: Sequence[int] = (),
) -> list[Event]:
    """What is said of live speech whose pieces come so many seconds ``late``, in turn, where the
    decodes take ``costs`` in turn, with a flush or new options at every sample of ``requests``."""
    session, now, free_at, turn = make_session(config), 0.0, 0.0, 0
    events: list[Event] = []
    job: DecodeJob | None = None

    def work(until: float) -> None:
        """Decodes what there is, until the time given."""
        nonlocal job, now, free_at, turn
        while True:
            if job is None and (job := session.next_job(now)) is not None:
                free_at = now + costs[turn % len(costs)]
                turn += 1
            if job is None or free_at > until:
                now = until
                return
            now = free_at
            done, job = decode(job), None
            events.extend(session.job_done(done, now))

    bounds = {end for _, end in cuts(len(audio), list(sizes))} | set(requests)
    at = 0
    for number, end in enumerate(sorted(bounds)):
        work(max(now, end / SAMPLE_RATE + late[number % len(late)]))
        while session.room < end - at:
            work(free_at)
        events += session.feed(audio[at:end])
        at = end
        if end in requests and end % 2:
            events += session.flush(str(end))
        elif end in requests:
            session.configure(replace(config, endpoint_silence=0.3 + end % 5 / 10))
    events += session.finish()
    while not session.finished:
        work(max(now, free_at))
    return [event for event in events if not isinstance(event, Lag)]


@relaxed
@given(
    script=scripts(),
    sizes=SIZES.map(lambda sizes: [min(size, 20_000) + 300 for size in sizes]),
    late=st.lists(st.sampled_from([0.0, 0.0, 0.3, 2.0, 10.0]), min_size=1, max_size=6),
    costs=st.lists(st.floats(0.0, 0.5), min_size=1, max_size=6),
    points=st.lists(st.integers(1, 400_000), max_size=4),
    chaos=st.booleans(),
    interval=st.sampled_from([0.2, 0.4, 1.1]),
)
def test_a_live_stream_says_the_same_however_late_its_audio_and_its_decodes_are(
    script: Script,
    sizes: list[int],
    late: list[float],
    costs: list[float],
    points: list[int],
    chaos: bool,
    interval: float,
) -> None:
    config = StreamConfig(language="en", update_interval=interval, soft_window=4.0, max_window=9.0)
    requests = [point for point in points if point < len(script.audio)]

    def decoder() -> FakeDecoder | ChaoticDecoder:
        return ChaoticDecoder() if chaos else FakeDecoder()

    undisturbed = live(config, script.audio, decoder(), requests=requests)
    costs = [cost * interval for cost in costs]
    disturbed = live(
        config,
        script.audio,
        decoder(),
        sizes=sizes,
        late=late,
        costs=costs,
        requests=requests,
    )
    assert disturbed == undisturbed


# -- Real weights


def test_real_speech_of_any_chunking(tiny_en: Whisper, jfk: Samples) -> None:
    torch.manual_seed(0)
    backend = WhisperBackend(tiny_en, BackendConfig(final_context="trimmed"))
    data = (jfk * 32768).clip(-32768, 32767).astype("<i2").tobytes()
    config = StreamConfig(update_interval=3.0)
    known: dict[tuple[bytes, tuple[int, ...], tuple[int, ...], bool], DecodeResult] = {}

    def decode(job: DecodeJob) -> DecodeResult:
        key = (job.audio.tobytes(), job.prefix, job.draft, job.final)
        if key not in known:
            (known[key],) = backend.decode([job])
        return known[key]

    def run(chunks: list[bytes]) -> list[Event]:
        reader = PcmIngest("s16le", SAMPLE_RATE, 1)
        session = StreamSession(config, WebRtcDetector(), backend.tokenizer)
        return [t.event for t in simulate(session, map(reader.push, chunks), decode)]

    whole = run([data])
    text = "".join(texts(committed_words(whole)))
    assert text.startswith(" And so my fellow Americans")
    assert text.endswith("what you can do for your country.")
    decodes = len(known)
    for sizes in ([1, 160_001], [641], [3, 5, 7, 32_000], [320_000]):
        assert run([data[at:end] for at, end in cuts(len(data), sizes)]) == whole
    assert len(known) == decodes  # the very same jobs
    starts = [w.start_sample for w in committed_words(whole)]
    assert starts == sorted(starts)
    assert any(isinstance(event, Commit) for event in whole[:-4])
