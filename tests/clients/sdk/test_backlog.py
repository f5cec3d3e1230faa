"""What a client keeps of what it has said, against a model of the server."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.sdk.session import Backlog
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
                backlog.sent()
                if isinstance(message, wire.Audio):
                    assert said[taken : taken + len(message.data)] == message.data
                    taken += len(message.data)
                else:
                    assert message == wire.Flush(id=marks[controls][1])
                    assert marks[controls][0] == taken
                    controls += 1
            case "ack":
                backlog.held(taken, controls)
            case "cut":
                # of the last audio, some may not have arrived
                floor = marks[controls - 1][0] if controls else 0
                lost = data.draw(st.integers(0, min(3, taken - max(floor, taken - 3))))
                taken -= lost if backlog.size >= len(said) - taken + lost else 0
                backlog.rewind(taken, controls)
    while not backlog.all_sent:
        message = backlog.next()
        backlog.sent()
        if isinstance(message, wire.Audio):
            assert said[taken : taken + len(message.data)] == message.data
            taken += len(message.data)
        else:
            controls += 1
    assert taken == len(said) and controls == len(marks)
    backlog.held(taken, controls)
    assert backlog.size == 0
