"""Messages of the native protocol, version 1, and their size limits. No I/O: clients and server import this.

A message is a map with a ``type``. Server messages carry ``seq``, which grows through a session. Times are
seconds from the first sample of the stream, rounded to the millisecond. Word texts keep their leading space,
so joining them gives the transcript in every language.

The docstrings of the messages are the descriptions in ``docs/protocol.schema.json``.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "Ack",
    "Audio",
    "ClientMessage",
    "Commit",
    "Config",
    "Configured",
    "DEFAULT_PORT",
    "Done",
    "ENCODINGS",
    "Encoding",
    "Eos",
    "Error",
    "Flush",
    "Flushed",
    "Gap",
    "JSON_SUBPROTOCOL",
    "Lag",
    "Language",
    "MAX_FRAME_BYTES",
    "MAX_ID_CHARS",
    "MAX_LANGUAGES",
    "MAX_PROMPT_CHARS",
    "MSGPACK_SUBPROTOCOL",
    "Partial",
    "Ping",
    "Pong",
    "Ready",
    "Resume",
    "Resumed",
    "STREAM_PATH",
    "SUBPROTOCOLS",
    "Seen",
    "Segment",
    "ServerMessage",
    "Snapshot",
    "SpeechStarted",
    "SpeechStopped",
    "Start",
    "Warning",
    "Word",
]

MAX_PROMPT_CHARS = 4_000  # and of hotwords
MAX_LANGUAGES = 100
MAX_ID_CHARS = 256

Encoding = Literal[
    "s16le", "f32le", "mulaw", "alaw", "webm", "ogg", "mp3", "wav", "flac", "mp4", "aac"
]
ENCODINGS: tuple[Encoding, ...] = get_args(Encoding)


class _Client(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    pass


class Start(_Client, frozen=True, kw_only=True, tag="start"):
    """Opens the stream. Must come first."""

    encoding: Encoding = "s16le"
    sample_rate: Annotated[int, Meta(ge=8_000, le=48_000)] = 16_000
    channels: Annotated[int, Meta(ge=1, le=2)] = 1  # interleaved
    language: str | None = None  # ISO code; null: detect
    task: Literal["transcribe", "translate"] = "transcribe"
    languages: Annotated[tuple[str, ...], Meta(max_length=MAX_LANGUAGES)] = ()  # none: any
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] = ""
    hotwords: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] = ""
    endpoint_silence: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None  # null: the default
    resume: bool = False  # keep the stream when the connection drops; the client will ``ack``


class Audio(_Client, frozen=True, kw_only=True, tag="audio"):
    """PCM in the declared encoding. With JSON, audio travels as binary frames instead."""

    data: bytes


class Flush(_Client, frozen=True, kw_only=True, tag="flush"):
    """Commit everything received so far; answered by ``flushed`` with the same id."""

    id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] = ""


class Config(_Client, frozen=True, kw_only=True, tag="config", omit_defaults=True):
    """Change options of the stream; what is left out stays as it is."""

    language: str | None | UnsetType = UNSET
    languages: Annotated[tuple[str, ...], Meta(max_length=MAX_LANGUAGES)] | UnsetType = UNSET
    prompt: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] | UnsetType = UNSET
    hotwords: Annotated[str, Meta(max_length=MAX_PROMPT_CHARS)] | UnsetType = UNSET
    endpoint_silence: Annotated[float, Meta(ge=0.1, le=10.0)] | None | UnsetType = UNSET


class Eos(_Client, frozen=True, kw_only=True, tag="eos"):
    """No more audio. The server commits the rest, sends ``done`` and closes."""


class Ping(_Client, frozen=True, kw_only=True, tag="ping"):
    """Answered by ``pong`` with the same id; also keeps an idle stream open."""

    id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] = ""


class Resume(_Client, frozen=True, kw_only=True, tag="resume"):
    """Instead of ``start``: go on with ``session`` after a lost connection.

    ``seq`` is the highest that the client has received.
    """

    session: Annotated[str, Meta(max_length=MAX_ID_CHARS)]
    token: Annotated[str, Meta(max_length=MAX_ID_CHARS)]
    seq: Annotated[int, Meta(ge=0)] = 0


class Seen(_Client, frozen=True, kw_only=True, tag="ack"):
    """Every server message up to ``seq`` has arrived; the server may forget them."""

    seq: Annotated[int, Meta(ge=0)]


ClientMessage = Start | Resume | Audio | Flush | Config | Eos | Ping | Seen


class _Server(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    seq: int = 0


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A word, and any punctuation attached to it. ``probability`` is between 0 and 1."""

    text: str
    start: float
    end: float
    probability: float


class Ready(_Server, frozen=True, kw_only=True, tag="ready"):
    """The stream is open; the fields say what was agreed. ``session`` identifies it in logs.

    With ``token`` a client may fetch the transcript, and resume the stream within
    ``resume_seconds`` of a lost connection (0: it cannot be resumed).
    """

    session: str
    model: str
    language: str | None
    task: str
    encoding: Encoding
    sample_rate: int
    channels: int
    token: str = ""
    resume_seconds: float = 0.0
    watch: str = ""  # path, with a key of its own, at which others may read along


class Resumed(_Server, frozen=True, kw_only=True, tag="resumed"):
    """The stream goes on. The account is that of ``ack``; the client sends what follows it."""

    session: str
    samples: int
    bytes: int
    controls: int


class Configured(_Server, frozen=True, kw_only=True, tag="configured"):
    """Answers ``config``: the options that hold now; audio up to ``time`` had come."""

    time: float
    language: str | None
    endpoint_silence: float


class SpeechStarted(_Server, frozen=True, kw_only=True, tag="speech_started"):
    """Speech was heard from ``time`` on."""

    time: float


class SpeechStopped(_Server, frozen=True, kw_only=True, tag="speech_stopped"):
    """Speech ended at ``time``."""

    time: float


class Partial(_Server, frozen=True, kw_only=True, tag="partial"):
    """The unstable tail after all committed words. Replaces the one before; may be empty."""

    text: str
    words: tuple[Word, ...]


class Commit(_Server, frozen=True, kw_only=True, tag="commit"):
    """Words that will never change, in order after all words committed before."""

    text: str
    words: tuple[Word, ...]


class Segment(_Server, frozen=True, kw_only=True, tag="segment"):
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


class Snapshot(_Server, frozen=True, kw_only=True, tag="snapshot"):
    """The first message to a reader: closed segments, words committed since, and the partial."""

    segments: tuple[Segment, ...]
    words: tuple[Word, ...]
    partial: tuple[Word, ...]


class Language(_Server, frozen=True, kw_only=True, tag="language"):
    """The language detected in the speech that begins at ``time``."""

    language: str
    probability: float
    time: float


class Flushed(_Server, frozen=True, kw_only=True, tag="flushed"):
    """Everything before ``time`` is committed."""

    id: str
    time: float


class Lag(_Server, frozen=True, kw_only=True, tag="lag"):
    """Under load: seconds the text is ``behind`` the audio, and the ``interval`` of updates now."""

    behind: float
    interval: float


class Gap(_Server, frozen=True, kw_only=True, tag="gap"):
    """Audio between these times was not decoded, and why."""

    start: float
    end: float
    reason: str


class Warning(_Server, frozen=True, kw_only=True, tag="warning"):
    """Something the client should know; the stream goes on unharmed."""

    code: str
    message: str


class Error(_Server, frozen=True, kw_only=True, tag="error"):
    """``field`` names the offending field. After a fatal error the server closes the connection."""

    code: str
    message: str
    field: str | None = None
    fatal: bool = True


class Ack(_Server, frozen=True, kw_only=True, tag="ack"):
    """The account of what the server has received, and will not lose if the connection is lost.

    ``samples`` counts per channel at the client's own rate, ``bytes`` the audio itself, ``controls``
    the ``flush``, ``config`` and ``eos`` messages.
    """

    samples: int
    bytes: int = 0
    controls: int = 0


class Pong(_Server, frozen=True, kw_only=True, tag="pong"):
    """Answers a ``ping``."""

    id: str


class Done(_Server, frozen=True, kw_only=True, tag="done"):
    """The last message. ``samples`` counts as in ``ack``, ``words`` all committed words."""

    duration: float
    samples: int
    words: int


ServerMessage = (
    Ready
    | Resumed
    | Configured
    | SpeechStarted
    | SpeechStopped
    | Partial
    | Commit
    | Segment
    | Snapshot
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


JSON_SUBPROTOCOL = "whisper-stream.v1.json"
MSGPACK_SUBPROTOCOL = "whisper-stream.v1.msgpack"
SUBPROTOCOLS = (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL)
STREAM_PATH = "/v1/stream"
DEFAULT_PORT = 9090
MAX_FRAME_BYTES = 4 * 1024 * 1024  # of one websocket message
