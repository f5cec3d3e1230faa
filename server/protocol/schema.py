"""The JSON Schema of the native protocol, made from its message types.

``python -m whisper_stream.server.protocol.schema > docs/protocol.schema.json``
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from .messages import ClientMessage, ServerMessage

__all__ = ["protocol_schema"]


def protocol_schema() -> dict[str, Any]:
    """Return one schema with definitions ``client`` and ``server``: any message of either side."""
    (client, server), components = msgspec.json.schema_components(
        (ClientMessage, ServerMessage), ref_template="#/$defs/{name}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "whisper-stream, the native protocol, version 1",
        "description": "Audio inside JSON appears in msgpack only; with JSON it is a binary frame.",
        "anyOf": [{"$ref": "#/$defs/client"}, {"$ref": "#/$defs/server"}],
        "$defs": {"client": client, "server": server, **components},
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(protocol_schema(), indent=2, ensure_ascii=False) + "\n")
