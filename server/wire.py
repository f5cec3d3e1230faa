"""The native protocol's messages (version 1). No torch, no I/O; clients and server import this.

A message is a map with a ``type``. Server messages carry ``seq``, which grows through a session.
Times are seconds from the first sample of the stream, rounded to the millisecond. Word texts keep
their leading space, so joining them gives the transcript in every language.
"""

from __future__ import annotations

from .client_messages import (
    ENCODINGS,
    MAX_ID_CHARS,
    MAX_LANGUAGES,
    MAX_PROMPT_CHARS,
    Audio,
    ClientMessage,
    Config,
    Encoding,
    Eos,
    Flush,
    Ping,
    Resume,
    Seen,
    Start,
)
from .server_messages import (
    Ack,
    Commit,
    Configured,
    Done,
    Error,
    Flushed,
    Gap,
    Lag,
    Language,
    Partial,
    Pong,
    Ready,
    Resumed,
    Segment,
    ServerMessage,
    Snapshot,
    SpeechStarted,
    SpeechStopped,
    Warning,
    Word,
)

__all__ = [
    "DEFAULT_PORT",
    "ENCODINGS",
    "JSON_SUBPROTOCOL",
    "MAX_FRAME_BYTES",
    "MAX_ID_CHARS",
    "MAX_LANGUAGES",
    "MAX_PROMPT_CHARS",
    "MSGPACK_SUBPROTOCOL",
    "STREAM_PATH",
    "SUBPROTOCOLS",
    "Ack",
    "Audio",
    "ClientMessage",
    "Commit",
    "Config",
    "Configured",
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
    "Resume",
    "Resumed",
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

JSON_SUBPROTOCOL = "whisper-stream.v1.json"
MSGPACK_SUBPROTOCOL = "whisper-stream.v1.msgpack"
SUBPROTOCOLS = (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL)
STREAM_PATH = "/v1/stream"
DEFAULT_PORT = 9090
MAX_FRAME_BYTES = 4 * 1024 * 1024  # of one websocket message
