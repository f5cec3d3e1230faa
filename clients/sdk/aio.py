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
from .connection import RECONNECT_SECONDS, ReconnectingStream
from .connection import connect as open_stream
from .embed import DaemonOptions, daemon
from .transcript import LiveTranscript, OutputFile

__all__ = [
    "Stream",
    "StreamOptions",
    "Transcript",
    "connect",
    "transcribe_file",
    "transcribe_microphone",
]


class StreamOptions(TypedDict, total=False):
    """Options of one stream; each has the default of the protocol's ``start``.

    Attributes:
        encoding: ``s16le``, ``f32le``, or another that the protocol lists.
        sample_rate: samples per second and channel.
        channels: interleaved channels.
        language: ISO code of what is spoken; None: detected.
        task: ``transcribe``, or ``translate`` into English.
        languages: codes that may be detected; empty: any.
        prompt: context or vocabulary.
        hotwords: words to expect, such as names.
        endpoint_silence: seconds of silence that end an utterance; None: the daemon's.
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
    """The transcript of a whole stream.

    Attributes:
        segments: closed segments in order, each with its words and their times in seconds.
        language: ISO code; empty if nothing was said.
    """

    segments: tuple[wire.Segment, ...]
    language: str

    @property
    def text(self) -> str:
        """The text of all segments."""
        return "".join(segment.text for segment in self.segments).strip()

    @property
    def words(self) -> tuple[wire.Word, ...]:
        """The words of all segments."""
        return tuple(word for segment in self.segments for word in segment.words)

    def render(self, format: CaptionFormat) -> str:
        """Return the transcript as ``srt``, ``vtt``, ``txt`` or ``json``."""
        return captions.render(self.segments, format)

    def save(self, path: str | Path) -> None:
        """Write the transcript to a file, whose extension names the format.

        Raises:
            OutputError: the extension names no format, or the file cannot be written.
        """
        OutputFile(Path(path)).write(self.segments)


class Stream:
    """An open stream. Iterate it for events, from the task that sends or from another one.

    Sending waits when the daemon does not keep up, and events wait to be taken: to send more than a few
    seconds of audio at once, take events in another task meanwhile.
    """

    def __init__(self, connection: ReconnectingStream) -> None:
        self._connection = connection
        self._flushes = 0

    async def send(self, pcm: bytes) -> None:
        """Send audio; waits while the daemon does not keep up.

        Args:
            pcm: any number of bytes, in the format that the options declare.

        Raises:
            ConnectionLost: the stream has ended.
        """
        await self._connection.send_audio(pcm)

    async def flush(self) -> str:
        """Ask for all audio sent so far to be committed.

        Returns:
            The ``id`` of the Flushed event that answers.

        Raises:
            ConnectionLost: the stream has ended.
        """
        self._flushes += 1
        flush_id = f"f{self._flushes}"
        await self._connection.flush(flush_id)
        return flush_id

    async def end(self) -> None:
        """Declare the end of the audio: the last words and Done follow, and the iteration ends.

        Raises:
            ConnectionLost: the stream has ended.
        """
        await self._connection.eos()

    def __aiter__(self) -> AsyncIterator[wire.ServerMessage]:
        """Iterate over the events; ends after Done.

        Raises:
            RemoteError: the daemon ended the stream with an error.
            ConnectionLost: the connection was lost, and the stream cannot go on.
            StreamError: the daemon broke the protocol.
        """
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

    A lost connection is made again, and the stream goes on without a missing or doubled word; a Resumed event
    says so.

    Args:
        url: the daemon's address; without a path, that of the native protocol is added.
        key: the API key, where the daemon wants one.
        reconnect_seconds: how long to try when the connection is lost; 0: not at all.
        options: see :class:`StreamOptions`.

    Returns:
        A context manager, which gives the open Stream.

    Raises:
        UsageError: ``url`` is no websocket address, or ``key`` has characters that no header can carry.
        ConnectError: nothing was opened; the text says why.
        RemoteError: the daemon refused the options; raised where events are taken.
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
        path: the file.
        url: a daemon's address; None starts one with ``model`` for this call.
        key: its API key, where it wants one.
        model: a published name or the path of weights, for a daemon of its own.
        speed: times real time; 0: as fast as the daemon takes the audio.
        on_event: called with every event as it comes.
        options: see :class:`StreamOptions`; those of the audio's format are not used.

    Returns:
        The whole transcript.

    Raises:
        SourceError: the file cannot be read as audio.
        DaemonError: the daemon of this call did not start.
        NotInstalledError: ``url`` is None, and the engine is not installed.
        StreamError: the stream failed.

    Warns:
        UserWarning: the file is damaged, or ends before its header says so.
    """
    source = AudioSource(Path(path))
    await asyncio.to_thread(source.check)
    collector = LiveTranscript()
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
        model: a published name or the path of weights, for a daemon of its own.
        options: see :class:`StreamOptions`; those of the audio's format are not used.

    Raises:
        SourceError: there is no microphone, or what is needed for it is not installed.
        DaemonError: the daemon of this call did not start.
        NotInstalledError: ``url`` is None, and the engine is not installed.
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
        stack.push_async_callback(_cancel, sender)
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


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _without_format(options: StreamOptions) -> StreamOptions:
    """Return the options without those of the audio's format: sources send s16le mono at 16 kHz."""
    kept = dict(options)
    for name in ("encoding", "sample_rate", "channels"):
        kept.pop(name, None)
    return kept  # type: ignore[return-value]
