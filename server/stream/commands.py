"""What a stream's session is given, as the journal keeps it: commands, each a msgpack map.

The engine's results are among them, and whatever depends on a clock has its time with it.
"""

from __future__ import annotations

import msgspec

from ...streamer.config import StreamConfig
from ...streamer.jobs import DecodeResult
from ..errors import JournalError

__all__ = [
    "Command",
    "Configure",
    "EndInput",
    "Failure",
    "Finish",
    "Flush",
    "Job",
    "Push",
    "Result",
    "decode_command",
    "encode_command",
]


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", omit_defaults=True):
    pass


class Push(_Command, frozen=True, kw_only=True, tag="push"):
    """Bytes came from the client; afterwards ``fed`` samples were handed to the session.

    ``at``: seconds since 1970, of the stream's first bytes.
    """

    data: bytes = b""
    fed: int = 0
    at: float = 0.0


class Flush(_Command, frozen=True, kw_only=True, tag="flush"):
    id: str


class Configure(_Command, frozen=True, kw_only=True, tag="configure"):
    config: StreamConfig


class EndInput(_Command, frozen=True, kw_only=True, tag="end_input"):
    """The client sends no more; afterwards ``fed`` samples were handed to the session."""

    fed: int = 0


class Finish(_Command, frozen=True, kw_only=True, tag="finish"):
    """The session has all audio."""


class Job(_Command, frozen=True, kw_only=True, tag="job"):
    """A job went out at ``now``, with so many samples of audio."""

    samples: int
    now: float


class Result(_Command, frozen=True, kw_only=True, tag="result"):
    result: DecodeResult
    now: float


class Failure(_Command, frozen=True, kw_only=True, tag="failure"):
    reason: str
    now: float


Command = Push | Flush | Configure | EndInput | Finish | Job | Result | Failure

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode_command(command: Command) -> bytes:
    return _encoder.encode(command)


def decode_command(body: bytes) -> Command:
    """Raises JournalError for what is no command."""
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise JournalError(f"the journal holds what is no command ({error})") from None
