"""What a client keeps of what it has said, against a model of the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.sdk.backlog import Backlog
from whisper_stream.server.protocol import messages as wire


@given(st.data())
def test_the_backlog_repeats_exactly_what_is_not_held(data: st.DataObject) -> None:
    """Against a model: the server takes a prefix of all that was said, cut anywhere in audio."""
    backlog, said = Backlog(), bytearray()
    marks: list[tuple[int, str]] = []  # position in the audio, id
    taken, controls = 0, 0
    for step in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["audio", "flush", "send", "ack", "cut"])):
            case "audio":
                piece = data.draw(st.binary(max_size=9))
                said += piece
                backlog.add(wire.Audio(data=piece))
            case "flush":
                marks.append((len(said), str(step)))
                backlog.add(wire.Flush(id=str(step)))
            case "send" if not backlog.all_sent:
                message = backlog.next()
                backlog.advance()
                if isinstance(message, wire.Audio):
                    assert said[taken : taken + len(message.data)] == message.data
                    taken += len(message.data)
                else:
                    assert message == wire.Flush(id=marks[controls][1])
                    assert marks[controls][0] == taken
                    controls += 1
            case "ack":
                backlog.acknowledge(taken, controls)
            case "cut":
                # of the last audio, some may not have arrived
                floor = marks[controls - 1][0] if controls else 0
                lost = data.draw(st.integers(0, min(3, taken - max(floor, taken - 3))))
                taken -= lost if backlog.size >= len(said) - taken + lost else 0
                backlog.rewind(taken, controls)
    while not backlog.all_sent:
        message = backlog.next()
        backlog.advance()
        if isinstance(message, wire.Audio):
            assert said[taken : taken + len(message.data)] == message.data
            taken += len(message.data)
        else:
            controls += 1
    assert taken == len(said) and controls == len(marks)
    backlog.acknowledge(taken, controls)
    assert backlog.size == 0


def drained(backlog: Backlog) -> tuple[bytes, list[wire.ClientMessage]]:
    audio = b""
    others: list[wire.ClientMessage] = []
    while not backlog.all_sent:
        message = backlog.next()
        backlog.advance()
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
        backlog.advance()
    arrived = len(b"".join(pieces[:sent]))
    backlog.acknowledge(data.draw(st.integers(0, arrived)), 0)
    closed = data.draw(st.integers(0, arrived // frame)) * frame
    backlog.release(closed)
    assert backlog.restart(frame) == closed
    assert drained(backlog)[0] == said[closed:]
    backlog.acknowledge(len(said) - closed, 0)
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
    backlog.acknowledge(8, 5)
    backlog.settle_flush("a")
    assert backlog.apply_configs(wire.Start(language="en")) == wire.Start(language="de")
    assert backlog.restart(2) == 0
    assert drained(backlog) == (bytes(8), [said[3], said[4], said[6]])
    backlog.rewind(8, 1)  # this session has the first of the three
    assert drained(backlog) == (b"", [said[4], said[6]])


def test_not_more_is_kept_than_was_allowed() -> None:
    backlog = Backlog(replay_bytes=100)
    for _ in range(50):
        backlog.add(wire.Audio(data=bytes(10)))
    drained(backlog)
    backlog.acknowledge(500, 0)
    assert backlog.restart(2) == 400
