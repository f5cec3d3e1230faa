"""What every stream promises, whatever the audio, the cuts, the load and the decoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.streamer.commands import EndOfStream
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession

from ...helpers.scripted import (
    WORD_SAMPLES,
    ChaoticDecoder,
    FakeDecoder,
    Ledger,
    Script,
    drain,
    make_session,
    scripted,
    word_text,
)
from ...helpers.stream_strategies import CONFIGS, Samples, relaxed, scripts, texts


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
            self.ledger.observe(self.session.finish_job(result, 0.0))

    def fail(self) -> None:
        if self._job is not None:
            self._job = None
            self.ledger.observe(self.session.fail_job("out of memory", 0.0))

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
        self.ledger.observe(self.session.request(EndOfStream()))
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
    ledger.observe(session.request(EndOfStream()))
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
            ledger.observe(session.finish_job(decode(job), 0.0))
