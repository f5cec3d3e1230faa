"""The native protocol's messages (version 1). No torch, no I/O; clients and server both import this.

A message is a map with a ``type``. Server messages carry ``seq``, counted from 1 in each session.
Times are seconds from the first sample of the stream, rounded to the millisecond. Word texts keep
their leading space, so joining them gives the transcript in every language.
"""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = [
    "DEFAULT_PORT",
    "ENCODINGS",
    "JSON_SUBPROTOCOL",
    "MAX_FRAME_BYTES",
    "MSGPACK_SUBPROTOCOL",
    "STREAM_PATH",
    "SUBPROTOCOLS",
    "Ack",
    "Audio",
    "ClientMessage",
    "Commit",
    "Done",
    "Encoding",
    "Eos",
    "Error",
    "Flush",
    "Flushed",
    "Gap",
    "Lag",
    "Language",
    "Partial",
    "Ping",
    "Pong",
    "Ready",
    "Segment",
    "ServerMessage",
    "SpeechStarted",
    "SpeechStopped",
    "Start",
    "Warning",
    "Word",
]

JSON_SUBPROTOCOL = "whisper-stream.v1.json"
MSGPACK_SUBPROTOCOL = "whisper-stream.v1.msgpack"
SUBPROTOCOLS = (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL)
STREAM_PATH = "/v1/stream"
DEFAULT_PORT = 9090
MAX_FRAME_BYTES = 4 * 1024 * 1024  # of one websocket message

Encoding = Literal["s16le", "f32le"]
ENCODINGS: tuple[Encoding, ...] = ("s16le", "f32le")


class _Client(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class Start(_Client, tag="start"):
    """Opens the stream. Must come first."""

    encoding: Encoding = "s16le"
    sample_rate: int = 16_000  # 8000 to 48000
    channels: int = 1  # 1 or 2, interleaved
    language: str | None = None  # ISO code; null: detect
    task: Literal["transcribe", "translate"] = "transcribe"
    prompt: str = ""
    endpoint_silence: float | None = None  # seconds; null: the server's default


class Audio(_Client, tag="audio"):
    """PCM in the declared encoding. With JSON, audio travels as binary frames instead."""

    data: bytes


class Flush(_Client, tag="flush"):
    """Commit everything received so far; answered by ``flushed`` with the same id."""

    id: str = ""


class Eos(_Client, tag="eos"):
    """No more audio. The server commits the rest, sends ``done`` and closes."""


class Ping(_Client, tag="ping"):
    id: str = ""


ClientMessage = Start | Audio | Flush | Eos | Ping


class _Server(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    seq: int = 0


class Word(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    start: float
    end: float
    probability: float


class Ready(_Server, tag="ready"):
    session: str
    model: str
    language: str | None
    task: str
    encoding: Encoding
    sample_rate: int
    channels: int


class SpeechStarted(_Server, tag="speech_started"):
    time: float


class SpeechStopped(_Server, tag="speech_stopped"):
    time: float


class Partial(_Server, tag="partial"):
    """The unstable tail after all committed words. Replaces the one before; may be empty."""

    text: str
    words: tuple[Word, ...]


class Commit(_Server, tag="commit"):
    """Words that will never change, in order after all words committed before."""

    text: str
    words: tuple[Word, ...]


class Segment(_Server, tag="segment"):
    """A closed utterance; all its words were committed before."""

    id: int
    text: str
    start: float
    end: float
    language: str
    words: tuple[Word, ...]
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float
    temperature: float


class Language(_Server, tag="language"):
    language: str
    probability: float
    time: float


class Flushed(_Server, tag="flushed"):
    id: str
    time: float


class Lag(_Server, tag="lag"):
    behind: float
    interval: float


class Gap(_Server, tag="gap"):
    start: float
    end: float
    reason: str


class Warning(_Server, tag="warning"):
    code: str
    message: str


class Error(_Server, tag="error"):
    """``field`` names the offending field. After a fatal error the server closes the connection."""

    code: str
    message: str
    field: str | None = None
    fatal: bool = True


class Ack(_Server, tag="ack"):
    """``samples`` counts what the server holds, per channel, at the client's own rate."""

    samples: int


class Pong(_Server, tag="pong"):
    id: str


class Done(_Server, tag="done"):
    duration: float
    samples: int
    words: int


ServerMessage = (
    Ready
    | SpeechStarted
    | SpeechStopped
    | Partial
    | Commit
    | Segment
    | Language
    | Flushed
    | Lag
    | Gap
    | Warning
    | Error
    | Ack
    | Pong
    | Done
)
