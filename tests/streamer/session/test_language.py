"""The language of a stream: detected until it is clear, doubted at fresh utterances, or given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from whisper_stream.streamer.commands import Configure
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import LanguageDetected, SegmentClosed
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.scripted import ENGLISH, Played, Samples, scripted


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
    stream.play(scripted([0.1] * 14, tail=2.0).audio).finish()
    (found,) = stream.of(LanguageDetected)
    assert (found.language, found.probability) == ("en", 0.7)
    assert [job.language for job in stream.jobs[:4]] == [None, None, None, "en"]
    assert {job.language for job in stream.jobs[3:]} == {"en"}
    (segment,) = stream.of(SegmentClosed)
    assert segment.language == "en"


def test_the_end_of_an_utterance_settles_a_doubt() -> None:
    stream = Played(UNKNOWN, heard(("de", 0.3)))
    stream.play(scripted([0.1] * 4, tail=2.0).audio).finish()
    (found,) = stream.of(LanguageDetected)
    assert (found.language, found.probability) == ("de", 0.3)


def two_utterances(pause: float) -> Samples:
    return scripted([0.1] * 8 + [pause] + [0.1] * 8, tail=2.0).audio


def test_another_language_is_taken_at_a_fresh_utterance_only_and_told() -> None:
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.95)))
    stream.play(two_utterances(4.0)).finish()
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
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.6))).play(two_utterances(4.0)).finish()
    assert [found.language for found in stream.of(LanguageDetected)] == ["en"]
    assert {segment.language for segment in stream.of(SegmentClosed)} == {"en"}


def test_after_a_short_pause_the_language_is_not_doubted() -> None:
    stream = Played(UNKNOWN, heard(("en", 0.9), ("de", 0.95))).play(two_utterances(1.0)).finish()
    assert all(job.switch_above is None for job in stream.jobs)
    assert len(stream.of(SegmentClosed)) == 2


def test_a_given_language_is_never_doubted() -> None:
    stream = Played(ENGLISH).play(two_utterances(4.0)).finish()
    assert all((job.language, job.switch_above) == ("en", None) for job in stream.jobs)


def test_the_languages_allowed_are_passed_on() -> None:
    stream = Played(StreamConfig(languages=("de", "en"))).play(scripted([0.1] * 8).audio).finish()
    assert {job.languages for job in stream.jobs} == {("de", "en")}


def test_without_a_known_language_a_segment_is_taken_for_english() -> None:
    config = replace(UNKNOWN, max_segment=1.0)
    stream = Played(config, heard(("nl", 0.1))).play(scripted([0.1] * 12, tail=0.0).audio)
    assert stream.of(SegmentClosed)[0].language == "en"
    assert stream.of(LanguageDetected) == []


def test_a_client_may_give_a_language_and_take_it_back() -> None:
    stream = Played(StreamConfig(language="de"), heard(("fr", 0.9)))
    audio = scripted([0.1] * 30, tail=2.0).audio
    languages: list[str | None] = []
    for at, language in ((0, "de"), (64_000, "it"), (96_000, None)):
        stream.session.request(Configure(language=language))
        before = len(stream.jobs)
        stream.play(audio[at : at + 32_000])
        languages.append(stream.jobs[before].language)
    assert languages == ["de", "it", None]
    assert [found.language for found in stream.of(LanguageDetected)] == ["fr"]
