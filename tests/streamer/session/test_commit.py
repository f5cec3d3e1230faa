"""The text of the open window: commits and partials."""

from __future__ import annotations

from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Commit, Event, Partial
from whisper_stream.streamer.jobs import DecodedWord
from whisper_stream.streamer.session.commit import HypothesisTracker
from whisper_stream.streamer.session.transcript import Transcript
from whisper_stream.streamer.session.window import Window

CONFIG = StreamConfig(language="en")
WINDOW = Window(16_000, 80_000, endpoint=False, cut=False)  # four seconds


def word(text: str, start: float) -> DecodedWord:
    return DecodedWord(
        text=text, tokens=tuple(map(ord, text)), start=start, end=start + 0.4, probability=0.9
    )


ONE, TWO, THREE = word(" one", 0.5), word(" two", 1.0), word(" three", 1.5)


def told(events: list[Event]) -> list[tuple[str, str]]:
    kinds = [(type(e).__name__, e.words) for e in events if isinstance(e, (Commit, Partial))]
    return [(kind, "".join(each.text for each in words)) for kind, words in kinds]


def made() -> tuple[HypothesisTracker, Transcript]:
    transcript = Transcript(CONFIG)
    return HypothesisTracker(CONFIG, transcript), transcript


def test_what_two_hypotheses_share_is_committed_and_the_rest_shown() -> None:
    tail, transcript = made()
    assert told(tail.add((ONE, TWO), WINDOW)) == [("Partial", " one two")]
    assert told(tail.add((ONE, THREE), WINDOW)) == [("Commit", " one"), ("Partial", " three")]
    assert tail.draft == THREE.tokens and transcript.prefix == ONE.tokens


def test_positions_are_those_of_the_stream() -> None:
    tail, _ = made()
    (partial,) = tail.add((ONE,), WINDOW)
    assert isinstance(partial, Partial)
    assert (partial.words[0].start_sample, partial.words[0].end_sample) == (24_000, 30_400)


def test_a_forgotten_hypothesis_agrees_with_nothing() -> None:
    tail, transcript = made()
    tail.add((ONE,), WINDOW)
    tail.forget()
    assert told(tail.add((ONE,), WINDOW)) == []  # the same is shown already
    assert transcript.prefix == ()


def test_a_full_window_commits_what_is_sure_and_an_utterance_all() -> None:
    tail, transcript = made()
    assert told(tail.commit_first((ONE, TWO), 1, WINDOW)) == [
        ("Commit", " one"),
        ("Partial", " two"),
    ]
    assert told(tail.commit_all((TWO, THREE), WINDOW)) == [
        ("Commit", " two three"),
        ("Partial", ""),
    ]
    assert transcript.count == 3 and tail.draft == ()
