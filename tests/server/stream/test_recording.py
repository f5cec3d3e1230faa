"""A stream brought back from its commands is the very same stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import raises
from whisper_stream.server.errors import JournalError
from whisper_stream.server.stream.commands import Command, Job, decode_command, encode_command
from whisper_stream.server.stream.recording import Recording
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Commit, Done, Event, StreamWarning
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
    """A recording driven by operations; ``kill`` puts one restored from the journal in its place."""

    def __init__(self, audio: bytes, decoder: object) -> None:
        assert callable(decoder)
        self.events: list[Event] = []
        self.journal: list[bytes] = []
        self._audio = audio
        self._decode = decoder
        self._now = 100.0  # of this daemon
        self._wall = 5_000.0
        self.recording = self._fresh()
        self.recording.record = self._record

    def _fresh(self) -> Recording:
        ingest = PcmIngest("s16le", 16_000, 1)
        return Recording(make_session(CONFIG), ingest, wall=lambda: self._wall)

    def _record(self, command: Command) -> None:
        self.journal.append(encode_command(command))

    def kill(self) -> None:
        restored = self._fresh()
        again: list[Event] = []
        for body in self.journal:
            again += restored.replay(decode_command(body))
        assert again == self.events
        assert restored.bytes_in == self.recording.bytes_in
        assert restored.controls == self.recording.controls
        assert restored.samples_in == self.recording.samples_in
        restored.record = self._record
        self.recording = restored
        self._now = 3.0  # another machine's clock

    def run(self, operation: str, amount: int) -> None:
        recording = self.recording
        self._now += 0.01
        self._wall += 0.01
        match operation:
            case "push" if not recording.has_pending:
                at = recording.bytes_in
                self.events += recording.push(self._audio[at : at + amount])
            case "poll":
                self.events += recording.drain()
                recording.next_job(self._now)
            case "done" if recording.job is not None:
                result: DecodeResult = self._decode(recording.job)
                self.events += recording.finish_job(result, self._now)
            case "fail" if recording.job is not None:
                self.events += recording.fail_job("out of memory", self._now)
            case "configure":
                language, prompt = ("de", "Anna") if amount % 2 else ("en", "")
                silence = (0.2, 0.6, 1.5)[amount % 3]
                recording.configure(
                    replace(
                        CONFIG,
                        language=language,
                        prompt=prompt,
                        hotwords="Kim" * (amount % 2),
                        languages=("en", "de")[: amount % 3],
                        endpoint_silence=silence,
                    )
                )
            case "flush":
                self.events += recording.flush(str(amount))
        self.events += recording.drain()

    def finish(self) -> None:
        while self.recording.bytes_in < len(self._audio):
            self.run("push", 30_000)
            self._settle()
        self.events += self.recording.end_input()
        self._settle()
        assert isinstance(self.events[-1], Done)

    def _settle(self) -> None:
        for _ in range(300):
            self.run("poll", 0)
            if self.recording.job is None:
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
    assert killed.events == undisturbed.events


def test_it_says_what_was_said() -> None:
    script = scripted([0.5, 0.1, 1.2, 0.3])
    rig = Rig(pcm16(script.audio), FakeDecoder())
    rig.run("push", 40_000)
    rig.kill()
    rig.finish()
    said = [word.text for e in rig.events if isinstance(e, Commit) for word in e.words]
    assert said == [word_text(word) for word, _ in script.words]


def test_new_options_hold_for_the_next_job() -> None:
    rig = Rig(pcm16(scripted([0.1] * 8).audio), FakeDecoder())
    rig.run("push", 40_000)
    rig.run("poll", 0)
    job = rig.recording.job
    assert job is not None and (job.language, job.prompt) == ("en", ())
    rig.run("configure", 1)
    rig.run("done", 0)
    rig.run("push", 40_000)
    rig.run("poll", 0)
    job = rig.recording.job
    assert job is not None
    assert (job.language, job.languages) == ("de", ("en",))
    assert job.prompt == tuple(ord(letter) for letter in "Anna Kim")


def test_a_job_that_was_out_goes_out_again() -> None:
    rig = Rig(pcm16(scripted([0.1] * 8).audio), FakeDecoder())
    rig.run("push", 60_000)
    rig.run("poll", 0)
    before = rig.recording.job
    assert isinstance(before, DecodeJob)
    rig.kill()
    after = rig.recording.next_job(0.0)
    assert after is not None and after.audio.tobytes() == before.audio.tobytes()


def test_a_journal_that_does_not_fit_is_refused() -> None:
    rig = Rig(b"", FakeDecoder())
    with raises(JournalError, match="does not fit"):
        rig.recording.replay(Job(samples=5, now=0.0))
    for body in (b"", b"\xc1", b"\x80", encode_command(Job(samples=5, now=0.0))[:-3]):
        with raises(JournalError, match="no command"):
            decode_command(body)


def test_a_doubt_about_the_encoding_is_told_once_whoever_dies() -> None:
    floats = np.random.default_rng(0).normal(0, 0.1, 64_000).astype("<f4")
    rig = Rig(floats.tobytes(), FakeDecoder())
    for _ in range(4):
        rig.run("push", 60_000)
        rig._settle()
        rig.kill()
    told = [event for event in rig.events if isinstance(event, StreamWarning)]
    assert [event.code for event in told] == ["encoding"]
