"""Which language a stream is in."""

from __future__ import annotations

from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import LanguageDetected
from whisper_stream.streamer.jobs import DecodeResult
from whisper_stream.streamer.session.language import LanguageTracker
from whisper_stream.streamer.session.window import Window

UPDATE = Window(100, 900, endpoint=False, cut=False)
LAST = Window(100, 900, endpoint=True, cut=False)


def heard(language: str, probability: float | None) -> DecodeResult:
    return DecodeResult(tokens=(), words=(), language=language, language_probability=probability)


def test_it_is_looked_for_until_it_is_clear() -> None:
    spoken = LanguageTracker(StreamConfig())
    assert spoken.learn(heard("de", 0.4), UPDATE) == [] and spoken.code is None
    assert spoken.name == "en" and spoken.switch_above(fresh=True) is None
    detected = LanguageDetected(language="fr", probability=0.6, sample=900)
    assert spoken.learn(heard("fr", 0.6), UPDATE) == [detected]
    assert spoken.learn(heard("fr", None), UPDATE) == [] and spoken.name == "fr"


def test_the_end_of_an_utterance_takes_what_there_is() -> None:
    spoken = LanguageTracker(StreamConfig())
    assert len(spoken.learn(heard("de", 0.2), LAST)) == 1


def test_only_a_fresh_utterance_may_be_in_another() -> None:
    spoken = LanguageTracker(StreamConfig())
    spoken.learn(heard("de", 0.9), UPDATE)
    assert spoken.switch_above(fresh=False) is None
    assert spoken.switch_above(fresh=True) == 0.8
    assert len(spoken.learn(heard("en", 0.9), UPDATE)) == 1


def test_one_that_was_given_holds_until_another_is() -> None:
    spoken = LanguageTracker(StreamConfig(language="de"))
    assert spoken.learn(heard("en", 0.99), LAST) == [] and spoken.code == "de"
    assert spoken.switch_above(fresh=True) is None
    spoken.configure(StreamConfig(language="it"))
    assert spoken.code == "it"
    spoken.configure(StreamConfig())
    assert spoken.code is None
