"""A stream without I/O. One that is brought back from its commands is the very same stream."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import raises
from whisper_stream.server.errors import JournalError
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.stream import Stream
from whisper_stream.server.stream.stream_journal import decode_command, encode_command
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.commands import (
    Audio,
    Command,
    Configure,
    EndOfStream,
    Flush,
    JobDone,
    JobFailed,
    JobStarted,
    Tick,
)
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import (
    ChaoticDecoder,
    FakeDecoder,
    make_session,
    pcm16,
    scripted,
    word_text,
)

CONFIG = StreamConfig(
    language="en", soft_window=4.0, max_window=7.5, buffer_seconds=12.0, update_interval=0.3
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["push", "push", "poll", "done", "fail", "flush", "configure"]),
        st.integers(1, 40_000),
    ),
    max_size=150,
)
GAPS = st.lists(st.sampled_from([0.06, 0.15, 0.45, 1.1, 2.5, 9.0]), min_size=1, max_size=25)


class Rig:
    """A stream driven by operations; ``kill`` puts one brought back from the journal in its place."""

    def __init__(self, audio: bytes, decoder: object) -> None:
        assert callable(decoder)
        self.messages: list[wire.ServerMessage] = []
        self.journal: list[tuple[float, bytes]] = []
        self.stream = self._fresh()
        self._audio = audio
        self._decode = decoder
        self._now = 100.0

    def _fresh(self) -> Stream:
        return Stream(make_session(CONFIG), PcmIngest("s16le", 16_000, 1), CONFIG)

    def apply(self, command: Command) -> None:
        self.messages += self.stream.apply(command, self._now)
        self.journal.append((self._now, encode_command(command)))

    def kill(self) -> None:
        before, self.stream = self.stream, self._fresh()
        again: list[wire.ServerMessage] = []
        for now, body in self.journal:
            again += self.stream.apply(decode_command(body), now)
        assert again == self.messages
        assert self.stream.ack() == before.ack()
        assert self.stream.now == before.now
        assert (self.stream.ended, self.stream.config) == (before.ended, before.config)

    def run(self, operation: str, amount: int) -> None:
        stream = self.stream
        self._now += 0.01
        match operation:
            case "push" if not stream.pending:
                at = stream.bytes_in
                self.apply(Audio(data=self._audio[at : at + amount]))
            case "poll" if stream.job is None:
                job = stream.next_job(self._now)
                if job is not None:
                    self.journal.append(
                        (self._now, encode_command(JobStarted(samples=len(job.audio))))
                    )
            case "done" if stream.job is not None:
                result: DecodeResult = self._decode(stream.job)
                self.apply(JobDone(result=result))
            case "fail" if stream.job is not None:
                self.apply(JobFailed(reason="out of memory"))
            case "configure" if not stream.pending:
                language, prompt = ("de", "Anna") if amount % 2 else (None, "")
                self.apply(
                    Configure(
                        language=language,
                        prompt=prompt,
                        hotwords="Kim" * (amount % 2),
                        languages=("en", "de")[: amount % 3],
                        endpoint_silence=(0.2, 0.6, 1.5)[amount % 3],
                    )
                )
            case "flush" if not stream.pending:
                self.apply(Flush(id=str(amount)))
        if stream.pending and stream.room > 0:
            self.apply(Tick())

    def finish(self) -> None:
        while self.stream.bytes_in < len(self._audio):
            self.run("push", 30_000)
            self.settle()
        self.apply(EndOfStream())
        self.settle()
        assert isinstance(self.messages[-1], wire.Done)

    def settle(self) -> None:
        for _ in range(300):
            self.run("poll", 0)
            if self.stream.job is None:
                return
            self.run("done", 0)
        raise AssertionError("jobs go on for ever without new audio")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(gaps=GAPS, operations=OPERATIONS, kills=st.sets(st.integers(0, 150)), chaos=st.booleans())
def test_killed_at_any_moments_it_says_the_same(
    gaps: list[float], operations: list[tuple[str, int]], kills: set[int], chaos: bool
) -> None:
    def rig() -> Rig:
        return Rig(pcm16(scripted(gaps).audio), ChaoticDecoder(7) if chaos else FakeDecoder())

    undisturbed, killed = rig(), rig()
    for number, operation in enumerate(operations):
        undisturbed.run(*operation)
        killed.run(*operation)
        if number in kills:
            killed.kill()
    undisturbed.finish()
    killed.finish()
    killed.kill()
    assert killed.messages == undisturbed.messages


def test_it_says_what_was_said() -> None:
    script = scripted([0.5, 0.1, 1.2, 0.3])
    rig = Rig(pcm16(script.audio), FakeDecoder())
    rig.run("push", 40_000)
    rig.kill()
    rig.finish()
    said = [word.text for m in rig.messages if isinstance(m, wire.Commit) for word in m.words]
    assert said == [word_text(word) for word, _ in script.words]


def test_the_last_account_comes_before_done() -> None:
    rig = Rig(pcm16(scripted([0.5, 0.1]).audio), FakeDecoder())
    rig.apply(Flush())
    rig.finish()
    ack, done = rig.messages[-2:]
    assert isinstance(done, wire.Done)
    assert ack == wire.Ack(samples=done.samples, bytes=2 * done.samples, controls=2)


def test_new_options_hold_for_the_next_job() -> None:
    rig = Rig(pcm16(scripted([0.1] * 8).audio), FakeDecoder())
    rig.run("push", 40_000)
    rig.run("poll", 0)
    job = rig.stream.job
    assert job is not None and (job.language, job.prompt) == ("en", ())
    rig.run("configure", 1)
    answer = rig.messages[-1]
    assert answer == wire.Configured(time=1.25, language="de", endpoint_silence=0.6)
    rig.run("done", 0)
    rig.run("push", 40_000)
    rig.run("poll", 0)
    job = rig.stream.job
    assert job is not None
    assert (job.language, job.languages) == ("de", ("en",))
    assert job.prompt == tuple(ord(letter) for letter in "Anna Kim")


def test_options_left_out_stay_as_they_are() -> None:
    rig = Rig(b"", FakeDecoder())
    rig.apply(Configure(hotwords="Škoda", languages=("en",)))
    rig.apply(Configure(prompt="x", language=None))
    config = rig.stream.config
    assert (config.hotwords, config.languages) == ("Škoda", ("en",))
    assert (config.prompt, config.language) == ("x", None)
    assert config.endpoint_silence == CONFIG.endpoint_silence


def test_a_job_that_was_out_goes_out_again() -> None:
    rig = Rig(pcm16(scripted([0.1] * 8).audio), FakeDecoder())
    rig.run("push", 60_000)
    rig.run("poll", 0)
    before = rig.stream.job
    assert isinstance(before, DecodeJob)
    rig.kill()
    after = rig.stream.next_job(0.0)
    assert after is not None and after.audio.tobytes() == before.audio.tobytes()


def test_a_journal_that_does_not_fit_is_refused() -> None:
    rig = Rig(b"", FakeDecoder())
    with raises(JournalError, match="does not fit"):
        rig.stream.apply(JobStarted(samples=5), 0.0)
    body = encode_command(JobStarted(samples=5))
    for damaged in (b"", b"\xc1", b"\x80", body[:-3]):
        with raises(JournalError, match="no command"):
            decode_command(damaged)


def test_a_doubt_about_the_encoding_is_told_once_after_any_restart() -> None:
    floats = np.random.default_rng(0).normal(0, 0.1, 64_000).astype("<f4")
    rig = Rig(floats.tobytes(), FakeDecoder())
    for _ in range(4):
        rig.run("push", 60_000)
        rig.settle()
        rig.kill()
    told = [message for message in rig.messages if isinstance(message, wire.Warning)]
    assert [warning.code for warning in told].count("encoding") == 1


def test_audio_counts_as_ahead_by_the_time_since_the_first() -> None:
    stream = Stream(make_session(CONFIG), PcmIngest("s16le", 16_000, 1), CONFIG)
    stream.apply(Flush(), 3.0)
    assert stream.seconds_ahead(50.0) == 0.0
    stream.apply(Audio(data=bytes(64_000)), 100.0)
    assert stream.seconds_ahead(100.5) == 1.5
