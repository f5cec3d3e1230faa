"""Voice that no word explains is decoded on its own, and its text taken if it can be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from whisper_stream.streamer.config import SAMPLE_RATE, StreamConfig
from whisper_stream.streamer.events import Commit, StreamWarning
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult

from ...helpers.scripted import Played, scripted, tokens_of, word_text

STOP = 4  # the word after whose commit the decoder says that the text has ended
CONFIG = StreamConfig(language="en")


def fall_silent(job: DecodeJob, result: DecodeResult) -> DecodeResult:
    """What a decoder does behind a prefix that looks like the end of everything."""
    if job.prefix and job.prefix[-1] == tokens_of(STOP)[-1]:
        return replace(result, tokens=(), words=(), avg_logprob=-0.03)
    return result


def spoken(stream: Played) -> list[str]:
    return [word.text for word in stream.ledger.words]


def test_no_word_is_lost_behind_a_prefix_that_ends_the_text() -> None:
    script = scripted([0.1] * 20, tail=2.0)
    stream = Played(CONFIG, fall_silent).play(script.audio).finish()
    assert spoken(stream) == [word_text(word) for word, _ in script.words]
    for word, (_, start) in zip(stream.ledger.words, script.words, strict=True):
        assert abs(word.start_sample - start) <= SAMPLE_RATE // 50  # when it was said


def test_text_does_not_stand_still_until_the_end() -> None:
    script = scripted([0.1] * 40, tail=2.0)
    stream = Played(CONFIG, fall_silent).play(script.audio).finish()
    assert spoken(stream) == [word_text(word) for word, _ in script.words]
    commits = [
        (fed, event)
        for fed, answer in zip(stream.fed_at, stream.answers, strict=True)
        for event in answer
        if isinstance(event, Commit)
    ]
    late = max(fed - event.words[0].start_sample for fed, event in commits)
    assert late < 4 * SAMPLE_RATE


def test_the_last_words_of_an_utterance_are_decoded_on_their_own() -> None:
    script = scripted([0.1] * 7, tail=2.0)
    stream = Played(CONFIG, fall_silent).play(script.audio).finish()
    assert spoken(stream) == [word_text(word) for word, _ in script.words]
    ends = [job for job in stream.jobs if job.endpoint]
    assert ends[-1].prefix == () and ends[-1].prompt == ()


@pytest.mark.parametrize("sign", [{"avg_logprob": -1.2}, {"no_speech_prob": 0.9}, {"looped": True}])
def test_a_text_that_cannot_be_believed_is_not_taken(sign: dict[str, float]) -> None:
    script = scripted([0.1] * 20, tail=2.0)

    def doubt(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        silent = fall_silent(job, result)
        stopped = any(word.text == word_text(STOP) for word in heard)
        heard.extend(silent.words)
        if stopped and not job.prefix:
            return replace(result, **sign)  # type: ignore[arg-type]
        return silent

    heard: list[DecodedWord] = []
    stream = Played(CONFIG, doubt).play(script.audio).finish()
    assert spoken(stream) == [word_text(word) for word in range(STOP + 1)]


def test_trials_are_few() -> None:
    script = scripted([0.1] * 60, tail=2.0)
    usual = Played(CONFIG, lambda job, result: result).play(script.audio).finish()

    def doubt(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        if job.prefix or not usual.jobs:
            return fall_silent(job, result)
        return replace(result, avg_logprob=-0.7)  # committed as an update, but not as a trial

    stream = Played(CONFIG, doubt).play(script.audio).finish()
    assert len(stream.jobs) < 1.5 * len(usual.jobs)


def test_voice_that_gives_no_words_is_reported() -> None:
    script = scripted([0.1] * 9, tail=2.0)

    def doubt(job: DecodeJob, result: DecodeResult) -> DecodeResult:
        if job.prefix or not any(stream.ledger.words):
            return fall_silent(job, result)
        return replace(result, avg_logprob=-0.7)

    stream = Played(CONFIG, doubt)
    stream.play(script.audio).finish()
    (warning,) = stream.of(StreamWarning)
    assert warning.code == "unclear_speech"
    assert "from 2.0 to" in warning.message
