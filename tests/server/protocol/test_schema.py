"""The published schema fits the message types, and whole conversations fit both."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import msgpack
import pytest
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import JsonCodec
from whisper_stream.server.protocol.schema import protocol_schema

from ...helpers.server_rig import daemon

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).parents[2] / "data"
SCHEMA = protocol_schema()
GOLDEN = sorted(DATA.glob("conversation-*.jsonl"))
# What differs from run to run.
FRESH = {"session": "0123456789abcdef", "token": "secret", "watch": "/path?key=secret"}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether a value fits a schema, by the few keywords that the protocol's uses."""
    if "$ref" in schema:
        return fits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return any(fits(value, each) for each in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return bool(value == schema["const"])
    kind = schema.get("type")
    if kind == "object":
        known = schema["properties"]
        required = set(schema.get("required", ()))
        return (
            isinstance(value, dict)
            and required <= set(value)
            and all(name not in known or fits(each, known[name]) for name, each in value.items())
        )
    if kind == "array":
        return isinstance(value, list) and all(fits(each, schema["items"]) for each in value)
    if kind in ("integer", "number"):
        right = isinstance(value, int if kind == "integer" else (int, float))
        low, high = schema.get("minimum", value), schema.get("maximum", value)
        return right and not isinstance(value, bool) and low <= value <= high
    types: dict[str | None, type | None] = {"string": str, "boolean": bool, "null": type(None)}
    wanted = types[kind]
    assert wanted is not None
    return isinstance(value, wanted) and len(str(value)) <= schema.get("maxLength", 1 << 30)


def test_the_published_schema_is_the_generated_one() -> None:
    published = json.loads((ROOT / "docs" / "protocol.schema.json").read_text(encoding="utf-8"))
    assert published == json.loads(json.dumps(SCHEMA))


def test_every_example_of_the_document_fits_the_schema() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    lines = re.findall(r"^([CS]): (\{.*\})$", text, re.MULTILINE)
    assert len(lines) > 20
    for side, line in lines:
        part = SCHEMA["$defs"]["client" if side == "C" else "server"]
        assert fits(json.loads(line), part), line
        assert not fits(json.loads(line) | {"type": "sing"}, part)
    start = SCHEMA["$defs"]["client"]
    assert not fits({"type": "start", "sample_rate": 7_999}, start)
    assert not fits({"type": "resume", "session": "x"}, start)


def conversation(path: Path) -> list[tuple[str, dict[str, Any]]]:
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(line["side"], line["message"]) for line in lines]


def said(message: wire.ServerMessage) -> dict[str, Any]:
    """A server message as the golden files hold it: without what depends on the run."""
    encoded = JsonCodec().encode(message)
    value: dict[str, Any] = json.loads(encoded)
    del value["seq"]
    return value | {name: text for name, text in FRESH.items() if name in value}


@pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)
@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_conversations(path: Path, subprotocol: str) -> None:
    """The client's side is replayed; the server's answers are those of the file, in order.

    And replaying the file's commits alone gives the file's segments.
    """
    lines = conversation(path)
    expected = [message for side, message in lines if side == "S"]
    with daemon() as running, running.connect(subprotocol) as peer:
        for side, message in lines:
            if side == "S":
                answer = peer.receive()
                while isinstance(answer, (wire.Partial, wire.Ack)):
                    answer = peer.receive()
                assert said(answer) == message
            elif message["type"] == "audio":
                peer.audio(base64.b64decode(message["data"]))
            else:
                json_form = subprotocol == wire.JSON_SUBPROTOCOL
                peer.socket.send(json.dumps(message) if json_form else msgpack.packb(message))
        assert peer.rest() == ([], 1000, "done")
    for message in expected:
        assert fits(message, SCHEMA["$defs"]["server"])
    commits = "".join(m["text"] for m in expected if m["type"] == "commit")
    assert commits == "".join(m["text"] for m in expected if m["type"] == "segment")


def test_there_are_golden_conversations() -> None:
    kinds = {m["type"] for path in GOLDEN for _, m in conversation(path)}
    assert len(GOLDEN) >= 3
    assert {"flushed", "configured", "error", "warning", "pong", "done"} <= kinds
