"""A stream that goes on in another session: which audio is sent again, and which words are told."""

from __future__ import annotations

from whisper_stream.clients.sdk.session_merge import Origin, SessionMerger
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import segment, word

LATER = Origin(seconds=10.0, samples=160_000, bytes=320_000)


def commit(*words: wire.Word) -> wire.Commit:
    return wire.Commit(text="".join(each.text for each in words), words=words)


def test_words_that_were_committed_before_are_not_repeated() -> None:
    merger = SessionMerger()
    merger.merge(commit(word(" Ask", 10.0, 10.4), word(" not", 10.4, 10.8)))
    merger.restart(LATER)
    again = commit(word(" Ask", 0.0, 0.4), word(" not", 0.45, 0.85), word(" what", 0.7, 1.2))
    assert merger.merge(again) == [commit(word(" what", 10.8, 11.2))]
    assert merger.merge(commit(word(" Ask", 0.0, 0.4))) == []
    tail = wire.Partial(text=" not your", words=(word(" not", 0.4, 0.8), word(" your", 1.3, 1.5)))
    assert merger.merge(tail) == [wire.Partial(text=" your", words=(word(" your", 11.3, 11.5),))]


def test_a_segment_has_the_words_of_both_sessions() -> None:
    merger = SessionMerger()
    early, late = word(" Ask", 10.0, 10.4), word(" not", 0.4, 0.8)
    merger.merge(commit(early))
    merger.restart(LATER)
    merger.merge(commit(word(" Ask", 0.0, 0.4), late))
    (told,) = merger.merge(segment(7, (word(" Ask", 0.0, 0.4), late)))
    assert isinstance(told, wire.Segment)
    assert (told.id, told.text, told.start, told.end) == (1, " Ask not", 10.0, 10.8)
    assert merger.merge(wire.Done(duration=2.0, samples=32_000, words=2)) == [
        wire.Done(duration=12.0, samples=192_000, words=2)
    ]


def test_times_and_counts_go_on() -> None:
    merger = SessionMerger()
    told = wire.SpeechStarted(time=0.5)
    assert merger.merge(told) == [told]
    merger.restart(LATER)
    assert merger.merge(told) == [wire.SpeechStarted(time=10.5)]
    assert merger.merge(wire.Ack(samples=5, bytes=10, controls=1)) == [
        wire.Ack(samples=160_005, bytes=320_010, controls=1)
    ]
    assert merger.merge(wire.Gap(start=1.0, end=2.0, reason="r")) == [
        wire.Gap(start=11.0, end=12.0, reason="r")
    ]
