"""What a client may say in the native protocol, and how long it may be. See ``wire``."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

__all__ = [
    "ENCODINGS",
    "MAX_ID_CHARS",
    "MAX_LANGUAGES",
    "MAX_PROMPT_CHARS",
    "Audio",
    "ClientMessage",
    "Config",
    "Encoding",
    "Eos",
    "Flush",
    "Ping",
    "Resume",
    "Seen",
    "Start",
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
