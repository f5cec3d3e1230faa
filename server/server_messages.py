"""What the server says in the native protocol. See ``wire``."""

from __future__ import annotations

import msgspec

from .client_messages import Encoding

__all__ = [
    "Ack",
    "Commit",
    "Configured",
    "Done",
    "Error",
    "Flushed",
    "Gap",
    "Lag",
    "Language",
    "Partial",
    "Pong",
    "Ready",
    "Resumed",
    "Segment",
    "ServerMessage",
    "Snapshot",
    "SpeechStarted",
    "SpeechStopped",
    "Warning",
    "Word",
]


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

    Whoever knows ``token`` may fetch the transcript, and resume the stream within
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
    """The stream goes on. What the server holds: as in ``ack``. The client sends what follows."""

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
    """What the server holds, whatever happens to the connection.

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
