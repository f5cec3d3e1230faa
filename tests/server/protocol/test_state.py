"""The connection's state machine: frames in, outcomes out, no sockets."""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.protocol.codec import JsonCodec, MsgpackCodec
from whisper_stream.server.protocol.errors import CloseCode, ErrorCode
from whisper_stream.server.protocol.messages import Error, Pong, Start, Warning
from whisper_stream.server.protocol.state import (
    Close,
    Outcome,
    ProtocolState,
    Reply,
    ServerProtocol,
)
from whisper_stream.streamer.commands import Audio, Configure, EndOfStream, Flush

START = '{"type":"start"}'
EOS = '{"type":"eos"}'


def fresh(languages: tuple[str, ...] = ("en", "de")) -> ServerProtocol:
    return ServerProtocol(JsonCodec(), languages, 0.6)


def streaming(start: str = START) -> ServerProtocol:
    protocol = fresh()
    assert isinstance(protocol.receive(start)[0], Start)
    return protocol


def feed(protocol: ServerProtocol, *frames: str | bytes) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for frame in frames:
        outcomes += protocol.receive(frame)
    return outcomes


def errors(outcomes: list[Outcome]) -> list[tuple[str, str | None, bool]]:
    replies = [a.message for a in outcomes if isinstance(a, Reply)]
    return [(m.code, m.field, m.fatal) for m in replies if isinstance(m, Error)]


def test_a_language_outside_the_allowed_ones_is_an_error() -> None:
    start = '{"type":"start","language":"de","languages":["en"]}'
    protocol = fresh()
    outcomes = protocol.receive(start)
    assert errors(outcomes) == [("invalid_field", "languages", True)]
    reply = outcomes[0]
    assert isinstance(reply, Reply) and isinstance(reply.message, Error)
    assert "'de'" in reply.message.message
    protocol = streaming('{"type":"start","language":"de","languages":["de","en"]}')
    wrong = '{"type":"config","languages":["en"]}'  # the language is still de
    assert errors(protocol.receive(wrong)) == [("invalid_field", "languages", False)]
    right = '{"type":"config","language":"en","languages":["en"]}'
    assert errors(protocol.receive(right)) == []
    again = '{"type":"config","language":"de"}'  # now it is not
    assert errors(protocol.receive(again)) == [("invalid_field", "languages", False)]
    assert errors(protocol.receive('{"type":"config","language":null}')) == []


def test_changes_of_options_become_one_command() -> None:
    assert streaming().receive('{"type":"config","prompt":"x","language":null}') == [
        Configure(prompt="x", language=None)
    ]
    back_to_default = '{"type":"config","endpoint_silence":null}'
    assert streaming().receive(back_to_default) == [Configure(endpoint_silence=0.6)]
    complaint, unchanged = streaming().receive('{"type":"config","language":"xx"}')
    assert isinstance(complaint, Reply) and unchanged == Configure()


def test_an_english_model_keeps_its_language() -> None:
    english = fresh(())
    english.receive(START)
    assert english.receive('{"type":"config","language":null,"hotwords":"Kim"}') == [
        Configure(hotwords="Kim")
    ]


def test_a_stream_from_start_to_end() -> None:
    protocol = fresh()
    outcomes = feed(
        protocol, START, b"\0\0", b"", '{"type":"flush","id":"7"}', '{"type":"ping","id":"p"}', EOS
    )
    assert outcomes == [
        Start(),
        Audio(data=b"\0\0"),
        Audio(data=b""),
        Flush(id="7"),
        Reply(message=Pong(id="p")),
        EndOfStream(),
    ]
    assert protocol.state is ProtocolState.DRAINING


FATAL_BEFORE_START: list[tuple[str | bytes, ErrorCode, str | None, CloseCode]] = [
    (b"\0\0", ErrorCode.AUDIO_BEFORE_START, None, CloseCode.POLICY_VIOLATION),
    (b"", ErrorCode.AUDIO_BEFORE_START, None, CloseCode.POLICY_VIOLATION),
    ('{"type":"flush"}', ErrorCode.NOT_STARTED, None, CloseCode.POLICY_VIOLATION),
    (EOS, ErrorCode.NOT_STARTED, None, CloseCode.POLICY_VIOLATION),
    ("UklGRg==", ErrorCode.TEXT_FRAME, None, CloseCode.UNSUPPORTED_DATA),
    ('"UklGRg=="', ErrorCode.TEXT_FRAME, None, CloseCode.UNSUPPORTED_DATA),
    ("[0, 1]", ErrorCode.TEXT_FRAME, None, CloseCode.UNSUPPORTED_DATA),
    ('{"type":"start"', ErrorCode.TEXT_FRAME, None, CloseCode.UNSUPPORTED_DATA),
    *(
        (f'{{"type":"start",{fields}}}', ErrorCode.INVALID_FIELD, name, CloseCode.POLICY_VIOLATION)
        for name, fields in [
            ("encoding", '"encoding":"adpcm"'),
            ("encoding", '"encoding":16'),
            ("sample_rate", '"sample_rate":4000'),
            ("sample_rate", '"sample_rate":"16000"'),
            ("channels", '"channels":6'),
            ("language", '"language":"xx"'),
            ("language", '"language":5'),
            ("languages", '"languages":["en","xx"]'),
            ("languages", '"languages":"en"'),
            ("hotwords", '"hotwords":["Nguyen"]'),
            ("task", '"task":"sing"'),
            ("prompt", '"prompt":"' + "x" * 4001 + '"'),
            ("endpoint_silence", '"endpoint_silence":-1'),
        ]
    ),
]


@pytest.mark.parametrize("codes", ['["en","zz"]', '["zz","en"]', '["zz"]', '["de"]', '["EN"]'])
def test_an_english_model_knows_which_codes_are_none(codes: str) -> None:
    english = fresh(())
    start = f'{{"type":"start","languages":{codes}}}'
    assert errors(english.receive(start)) == [("invalid_field", "languages", True)]
    english = fresh(())
    english.receive('{"type":"start","languages":["en","de"]}')
    config = f'{{"type":"config","languages":{codes}}}'
    assert errors(english.receive(config)) == [("invalid_field", "languages", False)]


@pytest.mark.parametrize(("frame", "code", "field", "close"), FATAL_BEFORE_START)
def test_a_bad_beginning_is_fatal(
    frame: str | bytes, code: ErrorCode, field: str | None, close: CloseCode
) -> None:
    protocol = fresh()
    outcomes = feed(protocol, frame)
    assert errors(outcomes) == [(code, field, True)]
    assert outcomes[1:] == [Close(code=close, reason=code)]
    assert protocol.state is ProtocolState.CLOSED
    assert feed(protocol, START, b"\0\0", EOS) == []


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ('{"type":"start","language":"xx"}', "en, de"),
        ('{"type":"start","encoding":"adpcm"}', "s16le, f32le"),
    ],
)
def test_a_bad_start_is_told_what_is_accepted(text: str, accepted: str) -> None:
    reply = fresh().receive(text)[0]
    assert isinstance(reply, Reply) and isinstance(reply.message, Error)
    assert accepted in reply.message.message


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ('"language":"de"', "language"),
        ('"languages":["de","fr"]', "languages"),
        ('"task":"translate"', "task"),
    ],
)
def test_an_english_model_takes_english_only(fields: str, field: str) -> None:
    outcomes = fresh(languages=()).receive(f'{{"type":"start",{fields}}}')
    assert errors(outcomes) == [(ErrorCode.INVALID_FIELD, field, True)]
    opened = fresh(languages=()).receive('{"type":"start","language":"en"}')
    assert opened == [Start(language="en")]


@pytest.mark.parametrize(
    ("frame", "code", "field"),
    [
        (START, ErrorCode.ALREADY_STARTED, None),
        ('{"type":"sing"}', ErrorCode.UNKNOWN_MESSAGE, "type"),
        ('{"type":"flush","id":[]}', ErrorCode.INVALID_FIELD, "id"),
        ('{"id":"x"}', ErrorCode.INVALID_FIELD, "type"),
    ],
)
def test_a_mistake_in_the_stream_does_not_end_it(
    frame: str, code: ErrorCode, field: str | None
) -> None:
    protocol = streaming()
    assert errors(feed(protocol, frame)) == [(code, field, False)]
    assert feed(protocol, b"\0\0") == [Audio(data=b"\0\0")]


def test_an_unknown_message_before_start_is_not_fatal() -> None:
    protocol = fresh()
    assert errors(feed(protocol, '{"type":"sing"}')) == [("unknown_message", "type", False)]
    assert feed(protocol, START) == [Start()]


@pytest.mark.parametrize(
    "frame",
    ["AAAA", '"AAAA"', '{"type":"audio","data":"AAAA"}', base64.b64encode(bytes(9)).decode()],
)
def test_text_where_audio_is_due_is_fatal(frame: str) -> None:
    outcomes = feed(streaming(), frame)
    assert errors(outcomes) == [(ErrorCode.TEXT_FRAME, None, True)]
    assert isinstance(outcomes[1], Close)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("AAAA", ErrorCode.TEXT_FRAME),
        (START, ErrorCode.TEXT_FRAME),
        (bytes(640), ErrorCode.UNREADABLE_FRAME),
        (msgpack.packb([1]), ErrorCode.UNREADABLE_FRAME),
    ],
)
def test_msgpack_takes_maps_only(frame: Any, code: ErrorCode) -> None:
    protocol = ServerProtocol(MsgpackCodec(), ("en",), 0.6)
    feed(protocol, msgpack.packb({"type": "start"}))
    assert errors(feed(protocol, frame)) == [(code, None, True)]


def test_after_eos_only_pings_are_answered() -> None:
    protocol = streaming()
    feed(protocol, EOS)
    late: list[str | bytes] = [b"\0\0", b"\0\0", '{"type":"flush"}', EOS, START]
    assert errors(feed(protocol, *late)) == [(ErrorCode.AFTER_EOS, None, False)] * 4
    assert feed(protocol, '{"type":"ping","id":"x"}') == [Reply(message=Pong(id="x"))]


@pytest.mark.parametrize("end", [EOS, '{"type":"flush","id":"f"}'])
def test_odd_bytes_warn_once_and_count_as_an_error_if_left(end: str) -> None:
    protocol = streaming('{"type":"start","encoding":"f32le","channels":2}')
    outcomes = feed(protocol, bytes(5), bytes(2), end)
    warnings = [a for a in outcomes if isinstance(a, Reply) and isinstance(a.message, Warning)]
    assert [w.message.code for w in warnings if isinstance(w.message, Warning)] == ["odd_bytes"]
    assert errors(outcomes) == [(ErrorCode.ODD_BYTES, None, False)]
    complaint = outcomes[-2]
    assert isinstance(complaint, Reply) and isinstance(complaint.message, Error)
    assert "7 of the 8 bytes" in complaint.message.message
    assert isinstance(outcomes[-1], (EndOfStream, Flush))


def test_odd_bytes_made_whole_are_no_error() -> None:
    outcomes = feed(streaming(), bytes(3), bytes(1), EOS)
    assert errors(outcomes) == []
    assert b"".join(a.data for a in outcomes if isinstance(a, Audio)) == bytes(4)


def test_a_stop_finishes_the_stream_and_ignores_what_comes_late() -> None:
    protocol = streaming()
    warning, finish = protocol.stop()
    assert isinstance(warning, Reply) and isinstance(warning.message, Warning)
    assert warning.message.code == "shutting_down" and finish == EndOfStream()
    assert feed(protocol, b"\0\0", EOS) == [] and protocol.stop() == []


def test_a_stop_before_start_closes() -> None:
    protocol = fresh()
    close = Close(code=CloseCode.SERVICE_RESTART, reason="shutting_down")
    assert protocol.stop()[1:] == [close]
    assert protocol.state is ProtocolState.CLOSED


def test_fail_closes_once() -> None:
    protocol = streaming()
    outcomes = protocol.fail(ErrorCode.INTERNAL, "broken", CloseCode.INTERNAL_ERROR)
    assert errors(outcomes) == [("internal", None, True)]
    assert protocol.fail(ErrorCode.INTERNAL, "again", CloseCode.INTERNAL_ERROR) == []


@given(st.lists(st.sampled_from([START, EOS, "x", '{"type":"flush"}', '{"a":1}']) | st.binary()))
def test_any_frames_keep_the_contract(frames: list[str | bytes]) -> None:
    """At most one open, before any audio; nothing but replies after the finish; a close is last."""
    outcomes = feed(fresh(), *frames)
    kinds = [type(outcome) for outcome in outcomes]
    assert kinds.count(Start) <= 1 and kinds.count(EndOfStream) <= 1
    for kind in (Audio, Flush, EndOfStream):
        if kind in kinds:
            assert Start in kinds[: kinds.index(kind)]
    if EndOfStream in kinds:
        after = kinds[kinds.index(EndOfStream) + 1 :]
        assert set(after) <= {Reply, Close}
    assert Close not in kinds[:-1]
