"""Codecs: round trips, hostile bytes, and the document that describes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import msgpack
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import (
    MAX_TEXT_CHARS,
    Codec,
    JsonCodec,
    MsgpackCodec,
    codec_for,
)
from whisper_stream.server.protocol.errors import (
    CloseCode,
    ErrorCode,
    InvalidField,
    ProtocolError,
    UnknownMessage,
    UnreadableFrame,
    WarningCode,
)

CODECS: list[Codec] = [JsonCodec(), MsgpackCodec()]
CLIENT = get_args(wire.ClientMessage)
SERVER = get_args(wire.ServerMessage)
DOCUMENT = (Path(__file__).parents[3] / "docs" / "protocol.md").read_text(encoding="utf-8")

# What one client message looks like in each codec, written by hand.
GOLDEN = [
    (wire.Flush(id="a"), '{"type":"flush","id":"a"}', b"\x82\xa4type\xa5flush\xa2id\xa1a"),
    (wire.Eos(), '{"type":"eos"}', b"\x81\xa4type\xa3eos"),
    (wire.Audio(data=b"\x01\x02"), b"\x01\x02", b"\x82\xa4type\xa5audio\xa4data\xc4\x02\x01\x02"),
]


def messages(kinds: tuple[type[Any], ...]) -> st.SearchStrategy[Any]:
    """Any message with any field values, within the ranges of the fields."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
    times = st.floats(0, 1e6, allow_nan=False)
    words = st.lists(
        st.builds(wire.Word, text=text, start=times, end=times, probability=times), max_size=3
    ).map(tuple)
    fields = {
        "words": words,
        "partial": words,
        "language": text,
        "prompt": text,
        "hotwords": text,
        "languages": st.lists(text, max_size=3).map(tuple),
        "id": text,
        "sample_rate": st.integers(8_000, 48_000),
        "channels": st.integers(1, 2),
        "endpoint_silence": st.none() | st.floats(0.1, 10),
    }

    def one(kind: type[Any]) -> st.SearchStrategy[Any]:
        by_type: dict[Any, st.SearchStrategy[Any]] = {
            float: times,
            int: st.integers(0, 2**53),
            str: text,
        }
        chosen: dict[str, st.SearchStrategy[Any]] = {}
        for field in msgspec.structs.fields(kind):
            if field.name == "seq":
                chosen[field.name] = st.integers(0, 2**53)
                continue
            # by type first: Segment.id is a number, Done.words a count
            if field.type in by_type:
                chosen[field.name] = by_type[field.type]
            elif field.name in fields:
                chosen[field.name] = fields[field.name]
        return st.builds(kind, **chosen)

    fields["segments"] = st.lists(one(wire.Segment), max_size=2).map(tuple)
    return st.one_of([one(kind) for kind in kinds])


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.subprotocol)
@given(message=messages(CLIENT))
def test_client_messages_round_trip(codec: Codec, message: wire.ClientMessage) -> None:
    assert codec.decode_client(codec.encode(message)) == message


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: c.subprotocol)
@given(message=messages(SERVER))
def test_server_messages_round_trip(codec: Codec, message: wire.ServerMessage) -> None:
    assert codec.decode_server(codec.encode(message)) == message


@pytest.mark.parametrize(("message", "as_json", "as_msgpack"), GOLDEN)
def test_frames_are_exact(message: Any, as_json: str | bytes, as_msgpack: bytes) -> None:
    assert JsonCodec().encode(message) == as_json
    assert MsgpackCodec().encode(message) == as_msgpack
    assert JsonCodec().decode_client(as_json) == message
    assert MsgpackCodec().decode_client(as_msgpack) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
maps = st.dictionaries(
    st.sampled_from(["type", "encoding", "sample_rate", "id", "data", "words", "seq", "x"]),
    st.sampled_from([kind.__struct_config__.tag for kind in (*CLIENT, *SERVER)]) | json_values,
)


@settings(max_examples=300)
@given(st.text() | st.binary() | maps.map(json.dumps))
def test_no_json_frame_raises_anything_else(frame: str | bytes) -> None:
    for decode in (JsonCodec().decode_client, JsonCodec().decode_server):
        try:
            decode(frame)
        except ProtocolError as error:
            assert str(error)


@settings(max_examples=300)
@given(st.text() | st.binary() | maps.map(lambda m: msgpack.packb(m, unicode_errors="ignore")))
def test_no_msgpack_frame_raises_anything_else(frame: str | bytes) -> None:
    for decode in (MsgpackCodec().decode_client, MsgpackCodec().decode_server):
        try:
            decode(frame)
        except ProtocolError as error:
            assert str(error)


@pytest.mark.parametrize(
    "frame",
    [
        b"\x91" * 100_000,  # nested arrays
        b"\x81\xa1a" * 5_000 + b"\x01",  # nested maps
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xc6\xff\xff\xff\xff",  # 4 GB of bytes
        b"\xd7\xff" + b"\xff" * 8,  # a timestamp out of range
        b"\x81\xa4type\xa2\xff\xfe",  # not UTF-8
    ],
)
def test_hostile_msgpack_is_unreadable(frame: bytes) -> None:
    with pytest.raises(UnreadableFrame):
        MsgpackCodec().decode_client(frame)


@pytest.mark.parametrize("text", ["[" * 50_000, '{"a":' * 10_000, "1e999", '"\\ud800"', "", "{"])
def test_hostile_json_is_unreadable(text: str) -> None:
    with pytest.raises(UnreadableFrame) as caught:
        JsonCodec().decode_client(text)
    assert caught.value.code is ErrorCode.TEXT_FRAME


def test_a_long_text_frame_is_not_even_parsed() -> None:
    with pytest.raises(UnreadableFrame, match=str(MAX_TEXT_CHARS)):
        JsonCodec().decode_client('{"type":"eos"' + " " * MAX_TEXT_CHARS + "}")


@pytest.mark.parametrize(
    ("text", "field", "accepted"),
    [
        ('{"type":"start","encoding":"adpcm"}', "encoding", "s16le, f32le, mulaw"),
        ('{"type":"start","sample_rate":7999}', "sample_rate", "8000 to 48000"),
        ('{"type":"start","sample_rate":16000.5}', "sample_rate", "8000 to 48000"),
        ('{"type":"start","channels":3}', "channels", "1 or 2"),
        ('{"type":"start","task":"sing"}', "task", "transcribe or translate"),
        ('{"type":"start","endpoint_silence":0}', "endpoint_silence", "0.1 to 10"),
        ('{"type":"flush","id":7}', "id", "256 characters"),
        ('{"id":"x"}', "type", "type"),
        ('{"type":7}', "type", "type"),
    ],
)
def test_a_wrong_field_is_named_with_what_it_takes(text: str, field: str, accepted: str) -> None:
    for codec, frame in ((CODECS[0], text), (CODECS[1], msgpack.packb(json.loads(text)))):
        with pytest.raises(InvalidField, match=accepted) as caught:
            codec.decode_client(frame)
        assert caught.value.field == field


def test_an_unknown_type_is_named_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownMessage, match="'sing'.*start, resume, audio, flush, config, eos, ping, ack"
    ):
        JsonCodec().decode_client('{"type":"sing"}')


def test_unknown_fields_are_ignored() -> None:
    assert JsonCodec().decode_client('{"type":"flush","id":"a","x":[1]}') == wire.Flush(id="a")
    frame = msgpack.packb({"type": "done", "duration": 1.0, "samples": 1, "words": 0, "x": {}})
    assert MsgpackCodec().decode_server(frame) == wire.Done(duration=1.0, samples=1, words=0)


def test_codecs_go_by_subprotocol() -> None:
    assert [codec_for(name).subprotocol for name in wire.SUBPROTOCOLS] == list(wire.SUBPROTOCOLS)
    assert codec_for(None).subprotocol == wire.JSON_SUBPROTOCOL
    with pytest.raises(ProtocolError, match="'soap'"):
        codec_for("soap")


def section(kind: type[Any]) -> str:
    """The part of the document under a message's heading."""
    name = kind.__struct_config__.tag
    side = "Client to server" if kind in CLIENT else "Server to client"
    half = re.search(rf"^## {side}$.*?(?=^## )", DOCUMENT, re.MULTILINE | re.DOTALL)
    assert half
    found = re.search(rf"^### `{name}`.*?(?=^##)", half.group() + "\n##", re.MULTILINE | re.DOTALL)
    assert found, f"docs/protocol.md has no section for {name}"
    return found.group()


@pytest.mark.parametrize("kind", [*CLIENT, *SERVER], ids=lambda k: k.__struct_config__.tag)
def test_the_document_names_every_field(kind: type[Any]) -> None:
    text = section(kind)
    for field in msgspec.structs.fields(kind):
        assert field.name == "seq" or f"`{field.name}`" in text, field.name


def test_the_document_names_every_code_and_word_field() -> None:
    names = [*ErrorCode, *WarningCode, *(str(int(code)) for code in CloseCode), *wire.SUBPROTOCOLS]
    names += [field.name for field in msgspec.structs.fields(wire.Word)]
    assert [name for name in names if f"`{name}`" not in DOCUMENT] == []


def test_the_examples_of_the_document_decode() -> None:
    lines = re.findall(r"^([CS]): (\{.*\})$", DOCUMENT, re.MULTILINE)
    seen = set()
    for side, line in lines:
        codec = JsonCodec()
        message = codec.decode_client(line) if side == "C" else codec.decode_server(line)
        assert json.loads(line).items() <= json.loads(codec.encode(message)).items()
        seen.add(type(message))
    expected = {kind for kind in (*CLIENT, *SERVER) if kind is not wire.Audio}
    assert seen == expected


def test_the_msgpack_examples_of_the_document_decode() -> None:
    dumps = re.findall(r"^((?:[0-9a-f]{2} )+[0-9a-f]{2}) +→ +(\{.*\})$", DOCUMENT, re.MULTILINE)
    assert len(dumps) >= 2
    for dump, meaning in dumps:
        value = msgpack.unpackb(bytes.fromhex(dump))
        if isinstance(value.get("data"), bytes):
            value["data"] = value["data"].hex()
        assert value == json.loads(meaning)
        MsgpackCodec().decode_client(bytes.fromhex(dump))
