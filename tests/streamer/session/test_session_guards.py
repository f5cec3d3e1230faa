"""One stream on bad days: loops, doubtful languages, speakers without pauses, a slow engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from whisper_stream.model.whisper.network import Whisper
from whisper_stream.streamer.audio.vad import WebRtcDetector
from whisper_stream.streamer.commands import Configure, EndOfStream
from whisper_stream.streamer.config import SAMPLE_RATE, PolicyName, StreamConfig
from whisper_stream.streamer.engine.cpu_backend import BackendConfig, WhisperBackend
from whisper_stream.streamer.events import (
    Commit,
    Event,
    LanguageDetected,
    Partial,
    SegmentClosed,
    SpeechStopped,
)
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult
from whisper_stream.streamer.session.session import StreamSession
from whisper_stream.streamer.simulator import simulate

from ...helpers.scripted import (
    FakeDecoder,
    Ledger,
    committed_words,
    make_session,
    scripted,
    word_text,
)

Samples = NDArray[np.float32]
ENGLISH = StreamConfig(language="en")
E = TypeVar("E")
POLICIES: tuple[PolicyName, ...] = ("local-agreement", "align-att", "either")


@dataclass
class Played:
    """A stream of scripted audio in steps of 0.1 s; ``change`` alters what the decoder says."""

    config: StreamConfig = ENGLISH
    change: Callable[[DecodeJob, DecodeResult], DecodeResult] = lambda job, result: result
    jobs: list[DecodeJob] = field(default_factory=list)
    fed_at: list[int] = field(default_factory=list)  # samples fed when each job was made
    said: list[list[Event]] = field(default_factory=list)  # by each answer

    def __post_init__(self) -> None:
        self.session = make_session(self.config)
        self.ledger = Ledger(self.session)

    def play(self, audio: Samples, *, finish: bool = True) -> Played:
        for at in range(0, len(audio), 1600):
            self.ledger.feed(audio[at : at + 1600])
            self._answer()
        if finish:
            self.ledger.observe(self.session.request(EndOfStream()))
            self._answer()
            assert self.session.finished
        return self

    def _answer(self) -> None:
        while (job := self.session.next_job(0.0)) is not None:
            self.jobs.append(job)
            self.fed_at.append(self.ledger.fed)
            events = self.session.finish_job(self.change(job, FakeDecoder()(job)), 0.0)
            self.said.append(events)
            self.ledger.observe(events)

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.ledger.events if isinstance(event, kind)]


# Loops


@pytest.mark.parametrize("sign", [{"looped": True}, {"compression_ratio": 2.5}])
def test_a_loop_is_neither_committed_nor_shown_and_tried_once_without_prompt(
    sign: dict[str, bool | float],
) -> None:
    script = scripted([0.1] * 14, tail=2.0)
    loops: list[int] = []  # the jobs that were answered with a loop

    def change(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        played = len(stream.jobs) - 1
        if job.prefix and not loops:
            loops.append(played)
            return replace(result, **sign)  # type: ignore[arg-type]
        return result

    stream = Played(StreamConfig(language="en", prompt="names"), change)
    stream.play(script.audio)
    (loop,) = loops
    assert stream.said[loop] == []
    looped, again, later = stream.jobs[loop : loop + 3]
    assert looped.prompt != ()
    assert again.prompt == () and again.draft == ()
    assert again.prefix == looped.prefix  # what is committed stays
    assert np.array_equal(again.audio, looped.audio)
    assert stream.fed_at[loop + 1] == stream.fed_at[loop]  # at once
    assert later.prompt == looped.prompt
    assert [word.text for word in stream.ledger.words] == [word_text(w) for w, _ in script.words]


def test_a_loop_that_stays_waits_for_more_audio() -> None:
    script = scripted([0.1] * 14, tail=2.0)

    def change(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        return result if job.endpoint else replace(result, looped=True)

    stream = Played(StreamConfig(language="en", prompt="names"), change).play(script.audio)
    updates = [job for job in stream.jobs if not job.endpoint]
    assert len(updates) > 4
    assert [job.prompt == () for job in updates] == [False, True] * (len(updates) // 2)
    for first, second in zip(stream.fed_at[1:-1:2], stream.fed_at[2::2], strict=False):
        assert second > first  # no third try of the same audio
    assert stream.of(Partial) == []
    assert len(stream.of(Commit)) == 1  # of the end, which the ladder of the decoder guards


# Language


def heard(*said: tuple[str, float]) -> Callable[[DecodeJob, DecodeResult], DecodeResult]:
    """Detections, one for each job that asks for one; the last for the rest."""
    answers = list(said)

    def change(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        if job.language is not None and job.switch_above is None:
            return replace(result, language=job.language, language_probability=None)
        language, probability = answers.pop(0) if len(answers) > 1 else answers[0]
        if job.language is not None and probability < (job.switch_above or 0.0):
            language = job.language
        return replace(result, language=language, language_probability=probability)

    return change


UNKNOWN = StreamConfig()


def test_a_language_in_doubt_is_looked_for_again_until_it_is_clear() -> None:
    stream = Played(UNKNOWN, heard(("nl", 0.3), ("de", 0.4), ("en", 0.7), ("fr", 0.9)))
    stream.play(scripted([0.1] * 14, tail=2.0).audio)
    (found,) = stream.of(LanguageDetected)
    assert (found.language, found.probability) == ("en", 0.7)
    assert [job.language for job in stream.jobs[:4]] == [None, None, None, "en"]
    assert {job.language for job in stream.jobs[3:]} == {"en"}
    (segment,) = stream.of(SegmentClosed)
    assert segment.language == "en"


def test_the_end_of_an_utterance_settles_a_doubt() -> None:
    stream = Played(UNKNOWN, heard(("de", 0.3)))
    stream.play(scripted([0.1] * 4, tail=2.0).audio)
    (found,) = stream.of(LanguageDetected)
    assert (found.language, found.probability) == ("de", 0.3)


def two_utterances(pause: float) -> Samples:
    return scripted([0.1] * 8 + [pause] + [0.1] * 8, tail=2.0).audio


def test_another_language_is_taken_at_a_fresh_utterance_only_and_told() -> None:
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.95)))
    stream.play(two_utterances(4.0))
    first, second = stream.of(LanguageDetected)
    assert (first.language, second.language) == ("en", "de")
    doubted = [index for index, job in enumerate(stream.jobs) if job.switch_above is not None]
    assert len(doubted) == 1  # the first job of the second utterance
    (fresh,) = doubted
    assert stream.jobs[fresh].language == "en"
    assert {job.language for job in stream.jobs[1:fresh]} == {"en"}
    assert {job.language for job in stream.jobs[fresh + 1 :]} == {"de"}
    assert [segment.language for segment in stream.of(SegmentClosed)] == ["en", "de"]
    # what was said in English is no context for German
    assert stream.jobs[fresh].prompt != ()
    assert stream.jobs[fresh + 1].prompt == ()


def test_another_language_that_is_in_doubt_changes_nothing() -> None:
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.6))).play(two_utterances(4.0))
    assert [found.language for found in stream.of(LanguageDetected)] == ["en"]
    assert {segment.language for segment in stream.of(SegmentClosed)} == {"en"}


def test_after_a_short_pause_the_language_is_not_doubted() -> None:
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.95))).play(two_utterances(1.0))
    assert all(job.switch_above is None for job in stream.jobs)
    assert len(stream.of(SegmentClosed)) == 2


def test_a_given_language_is_never_doubted() -> None:
    stream = Played(ENGLISH).play(two_utterances(4.0))
    assert all((job.language, job.switch_above) == ("en", None) for job in stream.jobs)


def test_the_languages_allowed_are_passed_on() -> None:
    stream = Played(StreamConfig(languages=("de", "en"))).play(scripted([0.1] * 8).audio)
    assert {job.languages for job in stream.jobs} == {("de", "en")}


def test_unknown_languages_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="languages has 'klingon'"):
        StreamConfig(languages=("en", "klingon"))


# Context

LONG_SCRIPT = scripted([0.1] * 60, tail=4.0)


def windows(**options: str | bool) -> StreamConfig:
    return replace(ENGLISH, soft_window=3.0, max_window=6.0, **options)  # type: ignore[arg-type]


def letters(text: str) -> tuple[int, ...]:
    return tuple(ord(letter) for letter in text)


def test_hotwords_are_in_every_prompt_behind_what_the_client_said() -> None:
    stream = Played(windows(prompt="ab", hotwords="Nguyen")).play(LONG_SCRIPT.audio)
    front = letters("ab Nguyen")
    assert {job.prompt[: len(front)] for job in stream.jobs} == {front}
    assert any(len(job.prompt) > len(front) for job in stream.jobs)


def test_without_carrying_the_prompt_is_for_the_first_window_alone() -> None:
    config = windows(prompt="ab", hotwords="Nguyen", carry_prompt=False)
    stream = Played(config).play(LONG_SCRIPT.audio)
    with_prompt = [job.prompt[:2] == letters("ab") for job in stream.jobs]
    assert with_prompt[0] and not with_prompt[-1]
    assert with_prompt == sorted(with_prompt, reverse=True)  # once gone, it stays away
    start = with_prompt.index(False)
    assert stream.jobs[start].prefix != stream.jobs[start - 1].prefix  # a window was left
    assert all(job.prompt[:7] == letters(" Nguyen") for job in stream.jobs[start:])


def test_hotwords_and_languages_can_be_changed_in_between() -> None:
    stream = Played(StreamConfig(hotwords="Nguyen"))
    stream.play(LONG_SCRIPT.audio[: 4 * SAMPLE_RATE], finish=False)
    before = len(stream.jobs)
    stream.session.request(Configure(hotwords="Kim", languages=("en", "ko")))
    stream.play(LONG_SCRIPT.audio[4 * SAMPLE_RATE :])
    assert {(job.prompt[:7], job.languages) for job in stream.jobs[:before]} == {
        (letters(" Nguyen"), ())
    }
    assert {(job.prompt[:4], job.languages) for job in stream.jobs[before:]} == {
        (letters(" Kim"), ("en", "ko"))
    }


# Length


def test_a_segment_longer_than_the_most_is_closed_at_a_committed_word() -> None:
    config = replace(ENGLISH, max_segment=2.0, soft_window=28.0)  # the window is not left either
    stream = Played(config).play(LONG_SCRIPT.audio)
    assert len(stream.of(SpeechStopped)) == 1  # nobody paused
    segments = stream.of(SegmentClosed)
    assert len(segments) > 5
    for segment in segments[:-1]:
        seconds = (segment.end_sample - segment.start_sample) / SAMPLE_RATE
        assert 2.0 <= seconds <= 3.2  # and what one update committed
    assert [word.text for segment in segments for word in segment.words] == [
        word_text(word) for word, _ in LONG_SCRIPT.words
    ]


# Cadence


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


# Every policy


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_commits_every_word_in_time(policy: PolicyName) -> None:
    stream = Played(replace(ENGLISH, policy=policy)).play(LONG_SCRIPT.audio)
    assert [word.text for word in stream.ledger.words] == [
        word_text(word) for word, _ in LONG_SCRIPT.words
    ]
    assert len(stream.of(Commit)) > 20


@pytest.mark.parametrize("policy", POLICIES)
def test_drafts_change_nothing_with_any_policy(
    tiny_en: Whisper, jfk: Samples, policy: PolicyName
) -> None:
    torch.manual_seed(0)
    backend = WhisperBackend(tiny_en, BackendConfig(final_context="trimmed", final_beams=2))
    config = StreamConfig(language="en", policy=policy, update_interval=0.7)

    def run(audio: Samples, *, drafts: bool) -> tuple[list[Event], int]:
        session = StreamSession(config, WebRtcDetector(), backend.tokenizer)
        steps = 0

        def decode(job: DecodeJob) -> DecodeResult:
            nonlocal steps
            (result,) = backend.decode([job if drafts else replace(job, draft=())])
            steps += result.steps
            return result

        events = [timed.event for timed in simulate(session, [audio], decode)]
        return events, steps

    audio = jfk[: 5 * SAMPLE_RATE]
    ours, steps = run(audio, drafts=True)
    plain, plain_steps = run(audio, drafts=False)
    assert [(w.text, w.start_sample) for w in committed_words(ours)] == [
        (w.text, w.start_sample) for w in committed_words(plain)
    ]
    assert len(committed_words(ours)) > 5
    assert steps < plain_steps
