"""The Python SDK, for asyncio; ``whisper_stream.clients`` exports it. Loads no torch.

::

    async with connect("ws://localhost:9090", language="en") as stream:
        await stream.send(pcm)
        await stream.end()
        async for event in stream:
            if isinstance(event, Commit):
                print(event.text, end="")
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

from ...server.protocol import captions
from ...server.protocol import messages as wire
from ...server.protocol.captions import CaptionFormat
from ..sources.files import AudioSource, Pacer, Source
from .connection import RECONNECT_SECONDS, StreamConnection
from .connection import connect as open_stream
from .embed import DaemonOptions, daemon
from .transcript import OutputFile
from .transcript import Transcript as _Collector

__all__ = [
    "Stream",
    "StreamOptions",
    "Transcript",
    "connect",
    "transcribe_file",
    "transcribe_microphone",
]


class StreamOptions(TypedDict, total=False):
    """Of one stream; each has the default of the protocol's ``start``.

    encoding: ``s16le`` or ``f32le``. sample_rate: per second and channel. channels: 1 or 2.
    language: ISO code; left out: detected. task: ``transcribe`` or ``translate``. prompt: context or
    vocabulary. languages: codes that may be detected. hotwords: words to expect, such as names.
    endpoint_silence: seconds that end an utterance.
    """

    encoding: wire.Encoding
    sample_rate: int
    channels: int
    language: str | None
    task: str
    languages: tuple[str, ...]
    prompt: str
    hotwords: str
    endpoint_silence: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """What was said: closed segments in order, each with its words and their times in seconds."""

    segments: tuple[wire.Segment, ...]
    language: str

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> tuple[wire.Word, ...]:
        return tuple(word for segment in self.segments for word in segment.words)

    def render(self, format: CaptionFormat) -> str:
        """As ``srt``, ``vtt``, ``txt`` or ``json``."""
        return captions.render(self.segments, format)

    def save(self, path: str | Path) -> None:
        """Write a file; its extension names the format. Raises OutputError."""
        OutputFile(Path(path)).write(self.segments)


class Stream:
    """An open stream. Iterate it for events, from the task that sends or from another one.

    Sending waits when the server does not keep up, and events wait to be taken: who sends more than
    a few seconds of audio at once should take events in another task meanwhile.
    """

    def __init__(self, connection: StreamConnection) -> None:
        self._connection = connection
        self._flushes = 0

    async def send(self, pcm: bytes) -> None:
        """Send audio as the options declare it; any number of bytes. Raises ConnectionLost."""
        await self._connection.send_audio(pcm)

    async def flush(self) -> str:
        """Ask for all that was sent to be committed; returns the ``id`` of the Flushed that follows."""
        self._flushes += 1
        flush_id = f"f{self._flushes}"
        await self._connection.flush(flush_id)
        return flush_id

    async def end(self) -> None:
        """No more audio comes: the last words and Done follow, and the iteration ends."""
        await self._connection.eos()

    def __aiter__(self) -> AsyncIterator[wire.ServerMessage]:
        """Every event; ends after Done. Raises RemoteError, ConnectionLost or StreamError."""
        return self._connection.__aiter__()


@asynccontextmanager
async def connect(
    url: str,
    *,
    key: str | None = None,
    reconnect_seconds: float = RECONNECT_SECONDS,
    **options: Unpack[StreamOptions],
) -> AsyncIterator[Stream]:
    """Open a stream to the daemon at ``ws://host:port``; leaving the context closes it.

    ``key`` is the API key, where the daemon wants one.

    A lost connection is made again for up to ``reconnect_seconds``, and goes on without a missing or
    doubled word; a Resumed event says so.

    Raises:
        UsageError: ``url`` is no websocket address.
        ConnectError: nothing was opened; the text says why.
    """
    start = wire.Start(**options)  # type: ignore[arg-type]  # a wrong task is refused by the server
    async with open_stream(url, start, reconnect_seconds=reconnect_seconds, key=key) as connection:
        yield Stream(connection)


async def transcribe_file(
    path: str | Path,
    url: str | None = None,
    *,
    key: str | None = None,
    model: str = "tiny.en",
    speed: float = 0,
    on_event: Callable[[wire.ServerMessage], None] | None = None,
    **options: Unpack[StreamOptions],
) -> Transcript:
    """Transcribe any audio or video file.

    Args:
        url: a daemon's address; None starts one with ``model`` for this call.
        key: its API key, where it wants one.
        speed: in times real time; 0: as fast as the daemon takes it.
        on_event: told of every event as it comes.

    Raises:
        SourceError: the file cannot be read as audio.
        StreamError: the stream failed.

    Warns:
        UserWarning: the file is damaged, or ends before its header says so.
    """
    source = AudioSource(Path(path))
    await asyncio.to_thread(source.check)
    collector = _Collector()
    async with aclosing(_events(source, url, key, model, speed, options)) as events:
        async for event in events:
            collector.add(event)
            if on_event is not None:
                on_event(event)
    if source.damage is not None:
        warnings.warn(source.damage, stacklevel=2)
    return Transcript(segments=collector.complete(), language=collector.language)


async def transcribe_microphone(
    url: str | None = None,
    *,
    key: str | None = None,
    device: str | None = None,
    model: str = "tiny.en",
    **options: Unpack[StreamOptions],
) -> AsyncGenerator[wire.ServerMessage, None]:
    """Yield events of what a microphone hears, until the generator is closed.

    Args:
        url: a daemon's address; None starts one with ``model`` for this call.
        key: its API key, where it wants one.
        device: a number, or a part of a name; None: the system's default.

    Raises:
        SourceError: there is no microphone, or what is needed for it is not installed.
        StreamError: the stream failed.
    """
    from ..sources.microphone import Microphone

    async with aclosing(_events(Microphone(device), url, key, model, 0, options)) as events:
        async for event in events:
            yield event


async def _events(
    source: Source,
    url: str | None,
    key: str | None,
    model: str,
    speed: float,
    options: StreamOptions,
) -> AsyncGenerator[wire.ServerMessage, None]:
    async with AsyncExitStack() as stack:
        address = url
        if address is None:
            address = await stack.enter_async_context(daemon(DaemonOptions(model=model)))
        stream = await stack.enter_async_context(
            connect(address, key=key, **_without_format(options))
        )
        sender = asyncio.create_task(_send(source, stream, Pacer(speed)))
        stack.push_async_callback(_cancelled, sender)
        async for event in stream:
            yield event
            if sender.done() and not sender.cancelled() and sender.exception():
                break
        if sender.done():
            sender.result()


async def _send(source: Source, stream: Stream, pacer: Pacer) -> None:
    sent = 0
    async with aclosing(source.stream()) as chunks:
        async for chunk in chunks:
            sent += len(chunk) // 2
            await asyncio.sleep(pacer.delay(sent))
            await stream.send(chunk)
    await stream.end()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _without_format(options: StreamOptions) -> StreamOptions:
    """Sources send s16le mono at 16 kHz, whatever is in them."""
    kept = dict(options)
    for name in ("encoding", "sample_rate", "channels"):
        kept.pop(name, None)
    return kept  # type: ignore[return-value]
