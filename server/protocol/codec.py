"""Codecs between messages and websocket frames: JSON and msgpack. No I/O.

A frame is ``str`` (text) or ``bytes`` (binary). With JSON, messages are text frames and audio is
a raw binary frame; with msgpack, every message is a map in a binary frame, audio too.
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol, get_args

import msgpack
import msgspec

from .errors import ErrorCode, InvalidField, ProtocolError, UnknownMessage, UnreadableFrame
from .messages import (
    ENCODINGS,
    JSON_SUBPROTOCOL,
    MAX_FRAME_BYTES,
    MAX_ID_CHARS,
    MAX_PROMPT_CHARS,
    MSGPACK_SUBPROTOCOL,
    Audio,
    ClientMessage,
    ServerMessage,
)

__all__ = ["MAX_TEXT_CHARS", "Codec", "Frame", "JsonCodec", "MsgpackCodec", "codec_for"]

Frame = str | bytes

MAX_TEXT_CHARS = 65_536  # of a client's text frame; its messages are small
_BINARY = "audio goes in raw binary frames"

# Values that a field accepts, for error messages: msgspec says what is wrong, this says what is right.
_ACCEPTED = {
    "encoding": f"one of {', '.join(ENCODINGS)}",
    "sample_rate": "a whole number from 8000 to 48000",
    "channels": "1 or 2",
    "language": "an ISO 639-1 code, or null to detect",
    "task": "transcribe or translate",
    "languages": "a list of ISO 639-1 codes",
    "hotwords": f"text of at most {MAX_PROMPT_CHARS} characters",
    "prompt": f"text of at most {MAX_PROMPT_CHARS} characters",
    "endpoint_silence": "seconds from 0.1 to 10, or null",
    "id": f"text of at most {MAX_ID_CHARS} characters",
    "data": "binary PCM",
    "resume": "true or false",
    "session": "the session of ready",
    "token": "the token of ready",
    "seq": "a whole number from 0",
}


class Codec(Protocol):
    """One form of the wire format."""

    subprotocol: str

    def encode(self, message: ClientMessage | ServerMessage) -> Frame:
        """Return the frame that carries ``message``."""

    def decode_client(self, frame: Frame) -> ClientMessage:
        """Return the client message in ``frame``; raises ProtocolError for anything else."""

    def decode_server(self, frame: Frame) -> ServerMessage:
        """Return the server message in ``frame``; raises ProtocolError for anything else."""


class JsonCodec:
    """Text frames of JSON; audio as raw binary frames."""

    subprotocol = JSON_SUBPROTOCOL

    def encode(self, message: ClientMessage | ServerMessage) -> Frame:
        """Return the frame that carries ``message``."""
        if isinstance(message, Audio):
            return message.data
        return msgspec.json.encode(message).decode()

    def decode_client(self, frame: Frame) -> ClientMessage:
        """Return the client message in ``frame``; raises ProtocolError for anything else."""
        if isinstance(frame, bytes):
            return Audio(data=frame)
        if len(frame) > MAX_TEXT_CHARS:
            raise UnreadableFrame(
                f"a text frame of {len(frame)} characters, above {MAX_TEXT_CHARS}; {_BINARY}",
                code=ErrorCode.TEXT_FRAME,
            )
        value = _json_object(frame)
        if value.get("type") == "audio":
            raise UnreadableFrame(
                f"audio came inside a text frame; {_BINARY}", code=ErrorCode.TEXT_FRAME
            )
        message: ClientMessage = _convert(value, ClientMessage)
        return message

    def decode_server(self, frame: Frame) -> ServerMessage:
        """Return the server message in ``frame``; raises ProtocolError for anything else."""
        if isinstance(frame, bytes):
            raise UnreadableFrame("a binary frame from the server, which sends text with JSON")
        message: ServerMessage = _convert(_json_object(frame), ServerMessage)
        return message


_packer = msgspec.msgpack.Encoder()
_unpack_client: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)


class MsgpackCodec:
    """Binary frames, each one msgpack map."""

    subprotocol = MSGPACK_SUBPROTOCOL

    def encode(self, message: ClientMessage | ServerMessage) -> Frame:
        """Return the frame that carries ``message``."""
        return _packer.encode(message)

    def decode_client(self, frame: Frame) -> ClientMessage:
        """Return the client message in ``frame``; raises ProtocolError for anything else."""
        if isinstance(frame, bytes):
            # Nearly all are valid; the slow way finds out the fault of one that is not.
            with contextlib.suppress(msgspec.MsgspecError, RecursionError):
                return _unpack_client.decode(frame)
        value = _msgpack_map(frame)
        if value.get("type") == "audio" and isinstance(value.get("data"), str):
            raise InvalidField("data", "data must be binary PCM, not text")
        message: ClientMessage = _convert(value, ClientMessage)
        return message

    def decode_server(self, frame: Frame) -> ServerMessage:
        """Return the server message in ``frame``; raises ProtocolError for anything else."""
        message: ServerMessage = _convert(_msgpack_map(frame), ServerMessage)
        return message


def codec_for(subprotocol: str | None) -> Codec:
    """Return the codec of a subprotocol; JSON when none was negotiated."""
    if subprotocol == MSGPACK_SUBPROTOCOL:
        return MsgpackCodec()
    if subprotocol in (None, JSON_SUBPROTOCOL):
        return JsonCodec()
    raise ProtocolError(ErrorCode.INVALID_FIELD, f"unknown subprotocol {subprotocol!r}")


def _json_object(frame: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(frame)
    except (ValueError, RecursionError) as error:
        raise UnreadableFrame(
            f"a text frame that is not a JSON message ({error}); {_BINARY}",
            code=ErrorCode.TEXT_FRAME,
        ) from None
    if not isinstance(value, dict):
        raise UnreadableFrame(
            f"a text frame that holds no JSON object; {_BINARY}",
            code=ErrorCode.TEXT_FRAME,
        )
    return value


def _msgpack_map(frame: Frame) -> dict[str, Any]:
    if isinstance(frame, str):
        raise UnreadableFrame(
            "a text frame; with msgpack every message is a binary frame", code=ErrorCode.TEXT_FRAME
        )
    hint = 'with msgpack audio travels as {"type": "audio", "data": <bytes>}'
    try:
        value = msgpack.unpackb(
            frame,
            max_str_len=MAX_FRAME_BYTES,
            max_bin_len=MAX_FRAME_BYTES,
            max_array_len=65_536,
            max_map_len=1_024,
            max_ext_len=1_024,
        )
    except (ValueError, OverflowError, msgpack.UnpackException) as error:
        reason = str(error) or type(error).__name__
        raise UnreadableFrame(
            f"a binary frame that is not one msgpack map ({reason}); {hint}"
        ) from None
    if not isinstance(value, dict):
        raise UnreadableFrame(f"a binary frame that holds no msgpack map; {hint}")
    return value


def _convert(value: dict[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise _explain(str(error), value, kind) from None


def _explain(text: str, value: dict[str, Any], kind: Any) -> ProtocolError:
    """Turn msgspec's error text, which ends in a path like `$.field`, into one of ours."""
    reason, _, path = text.partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    if not field and "required field" in reason:
        field = reason.split("`")[1]
    if field == "type" and isinstance(value.get("type"), str):
        return UnknownMessage(value["type"][:64], _type_names(kind))
    accepted = _ACCEPTED.get(field) if kind is ClientMessage else None
    wanted = f"; it must be {accepted}" if accepted else ""
    return InvalidField(field or "type", f"{field or 'type'} is wrong: {reason}{wanted}")


def _type_names(kind: Any) -> tuple[str, ...]:
    return tuple(str(message.__struct_config__.tag) for message in get_args(kind))
