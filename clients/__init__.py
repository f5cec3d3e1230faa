"""Clients of whisper-stream, and the Python SDK. Nothing here loads torch.

The names below are for asyncio; ``whisper_stream.clients.sync`` has the same without it. They are
loaded when first used, so that the command line starts at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..server.protocol.messages import (
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
        SpeechStarted,
        SpeechStopped,
        Warning,
        Word,
    )
    from ..server.protocol.messages import ServerMessage as Event
    from .errors import (
        ClientError,
        ConnectError,
        ConnectionLost,
        DaemonError,
        NotInstalledError,
        OutputError,
        RemoteError,
        SourceError,
        StreamError,
        UsageError,
    )
    from .sdk.aio import (
        Stream,
        StreamOptions,
        Transcript,
        connect,
        transcribe_file,
        transcribe_microphone,
    )

__all__ = [
    "Ack",
    "ClientError",
    "Commit",
    "Configured",
    "ConnectError",
    "ConnectionLost",
    "DaemonError",
    "Done",
    "Error",
    "Event",
    "Flushed",
    "Gap",
    "Lag",
    "Language",
    "NotInstalledError",
    "OutputError",
    "Partial",
    "Pong",
    "Ready",
    "RemoteError",
    "Resumed",
    "Segment",
    "SourceError",
    "SpeechStarted",
    "SpeechStopped",
    "Stream",
    "StreamError",
    "StreamOptions",
    "Transcript",
    "UsageError",
    "Warning",
    "Word",
    "connect",
    "transcribe_file",
    "transcribe_microphone",
]

_SDK = (
    "Stream",
    "StreamOptions",
    "Transcript",
    "connect",
    "transcribe_file",
    "transcribe_microphone",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _SDK:
        module = ".sdk.aio"
    else:
        ours = name.endswith(("Error", "Lost")) and name != "Error"
        module = ".errors" if ours else "..server.protocol.messages"
    source = importlib.import_module(module, __package__)
    return getattr(source, "ServerMessage" if name == "Event" else name)
