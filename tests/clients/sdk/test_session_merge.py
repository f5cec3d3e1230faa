"""A stream that goes on in another session: which audio is sent again, and which words are told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.sdk.session import Backlog
from whisper_stream.clients.sdk.session_merge import Origin, Story
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import segment, word

LATER = Origin(seconds=10.0, samples=160_000, bytes=320_000)


def commit(*words: wire.Word) -> wire.Commit:
    return wire.Commit(text="".join(each.text for each in words), words=words)


def test_words_that_were_committed_before_are_not_repeated() -> None:
    story = Story()
    story.tell(commit(word(" Ask", 10.0, 10.4), word(" not", 10.4, 10.8)))
    story.restart(LATER)
    again = commit(word(" Ask", 0.0, 0.4), word(" not", 0.45, 0.85), word(" what", 0.7, 1.2))
    assert story.tell(again) == [commit(word(" what", 10.8, 11.2))]
    assert story.tell(commit(word(" Ask", 0.0, 0.4))) == []
    tail = wire.Partial(text=" not your", words=(word(" not", 0.4, 0.8), word(" your", 1.3, 1.5)))
    assert story.tell(tail) == [wire.Partial(text=" your", words=(word(" your", 11.3, 11.5),))]


def test_a_segment_has_the_words_of_both_sessions() -> None:
    story = Story()
    early, late = word(" Ask", 10.0, 10.4), word(" not", 0.4, 0.8)
    story.tell(commit(early))
    story.restart(LATER)
    story.tell(commit(word(" Ask", 0.0, 0.4), late))
    (told,) = story.tell(segment(7, (word(" Ask", 0.0, 0.4), late)))
    assert isinstance(told, wire.Segment)
    assert (told.id, told.text, told.start, told.end) == (1, " Ask not", 10.0, 10.8)
    assert story.tell(wire.Done(duration=2.0, samples=32_000, words=2)) == [
        wire.Done(duration=12.0, samples=192_000, words=2)
    ]


def test_times_and_counts_go_on() -> None:
    story = Story()
    told = wire.SpeechStarted(time=0.5)
    assert story.tell(told) == [told]
    story.restart(LATER)
    assert story.tell(told) == [wire.SpeechStarted(time=10.5)]
    assert story.tell(wire.Ack(samples=5, bytes=10, controls=1)) == [
        wire.Ack(samples=160_005, bytes=320_010, controls=1)
    ]
    assert story.tell(wire.Gap(start=1.0, end=2.0, reason="r")) == [
        wire.Gap(start=11.0, end=12.0, reason="r")
    ]


def drained(backlog: Backlog) -> tuple[bytes, list[wire.ClientMessage]]:
    audio = b""
    others: list[wire.ClientMessage] = []
    while not backlog.all_sent:
        message = backlog.next()
        backlog.sent()
        if isinstance(message, wire.Audio):
            audio += message.data
        else:
            others.append(message)
    return audio, others


@given(
    pieces=st.lists(st.binary(min_size=1, max_size=9), max_size=30),
    frame=st.sampled_from([1, 2, 4]),
    data=st.data(),
)
def test_all_audio_since_the_last_closed_segment_is_sent_again(
    pieces: list[bytes], frame: int, data: st.DataObject
) -> None:
    backlog, said = Backlog(replay_bytes=1_000), b"".join(pieces)
    for piece in pieces:
        backlog.add(wire.Audio(data=piece))
    sent = data.draw(st.integers(0, len(pieces)))
    for _ in range(sent):
        backlog.sent()
    arrived = len(b"".join(pieces[:sent]))
    backlog.held(data.draw(st.integers(0, arrived)), 0)
    closed = data.draw(st.integers(0, arrived // frame)) * frame
    backlog.closed(closed)
    assert backlog.restart(frame) == closed
    assert drained(backlog)[0] == said[closed:]
    backlog.held(len(said) - closed, 0)
    assert backlog.size == 0


def test_what_was_answered_is_not_asked_again_and_options_are_kept() -> None:
    backlog = Backlog(replay_bytes=1_000)
    said: tuple[wire.ClientMessage, ...] = (
        wire.Config(language="de"),
        wire.Audio(data=bytes(8)),
        wire.Flush(id="a"),
        wire.Config(prompt="Kennedy"),
        wire.Flush(id="b"),
        wire.Ping(),
        wire.Eos(),
    )
    for message in said:
        backlog.add(message)
    drained(backlog)
    backlog.held(8, 5)
    backlog.answered("a")
    assert backlog.changed(wire.Start(language="en")) == wire.Start(language="de")
    assert backlog.restart(2) == 0
    assert drained(backlog) == (bytes(8), [said[3], said[4], said[6]])
    backlog.rewind(8, 1)  # this session has the first of the three
    assert drained(backlog) == (b"", [said[4], said[6]])


def test_not_more_is_kept_than_was_allowed() -> None:
    backlog = Backlog(replay_bytes=100)
    for _ in range(50):
        backlog.add(wire.Audio(data=bytes(10)))
    drained(backlog)
    backlog.held(500, 0)
    assert backlog.restart(2) == 400
