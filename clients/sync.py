"""The Python SDK without asyncio: the same names, and the same arguments, as in ``whisper_stream.clients``.

::

    with connect("ws://localhost:9090") as stream:
        stream.send(pcm)
        stream.end()
        for event in stream:
            ...

An event loop in a thread of its own does the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, Unpack

from ..server.protocol import messages as wire
from .sdk import aio as sdk
from .sdk.aio import StreamOptions, Transcript
from .sdk.connection import RECONNECT_SECONDS

__all__ = ["Stream", "connect", "transcribe_file", "transcribe_microphone"]

T = TypeVar("T")


class _Loop:
    """Runs coroutines for a caller that waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # Ctrl-C while it runs
            running.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def _loop() -> Iterator[_Loop]:
    loop = _Loop()
    try:
        yield loop
    finally:
        loop.close()


class Stream:
    """An open stream. Iterate it for events; one thread may send while another iterates.

    Sending waits when the daemon does not keep up, and events wait to be taken: to send more than a few
    seconds of audio at once, take events in another thread meanwhile.
    """

    def __init__(self, loop: _Loop, stream: sdk.Stream) -> None:
        self._loop = loop
        self._stream = stream

    def send(self, pcm: bytes) -> None:
        """Send audio; waits while the daemon does not keep up.

        Args:
            pcm: any number of bytes, in the format that the options declare.

        Raises:
            ConnectionLost: the stream has ended.
        """
        self._loop.run(self._stream.send(pcm))

    def flush(self) -> str:
        """Ask for all audio sent so far to be committed.

        Returns:
            The ``id`` of the Flushed event that answers.

        Raises:
            ConnectionLost: the stream has ended.
        """
        return self._loop.run(self._stream.flush())

    def end(self) -> None:
        """Declare the end of the audio: the last words and Done follow, and the iteration ends.

        Raises:
            ConnectionLost: the stream has ended.
        """
        self._loop.run(self._stream.end())

    def __iter__(self) -> Iterator[wire.ServerMessage]:
        """Iterate over the events; ends after Done.

        Raises:
            RemoteError: the daemon ended the stream with an error.
            ConnectionLost: the connection was lost, and the stream cannot go on.
            StreamError: the daemon broke the protocol.
        """
        return _iterate(self._loop, aiter(self._stream))


@contextmanager
def connect(
    url: str,
    *,
    key: str | None = None,
    reconnect_seconds: float = RECONNECT_SECONDS,
    **options: Unpack[StreamOptions],
) -> Iterator[Stream]:
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
    with _loop() as loop:
        opened = sdk.connect(url, key=key, reconnect_seconds=reconnect_seconds, **options)
        stream = loop.run(_await(opened.__aenter__()))
        try:
            yield Stream(loop, stream)
        finally:
            loop.run(_await(opened.__aexit__(None, None, None)))


def transcribe_file(
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
    return asyncio.run(
        sdk.transcribe_file(
            path, url, key=key, model=model, speed=speed, on_event=on_event, **options
        )
    )


def transcribe_microphone(
    url: str | None = None,
    *,
    key: str | None = None,
    device: str | None = None,
    model: str = "tiny.en",
    **options: Unpack[StreamOptions],
) -> Generator[wire.ServerMessage, None, None]:
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
    with _loop() as loop:
        events = sdk.transcribe_microphone(url, key=key, device=device, model=model, **options)
        try:
            yield from _iterate(loop, events)
        finally:
            loop.run(_await(events.aclose()))


def _iterate(
    loop: _Loop, events: AsyncIterator[wire.ServerMessage]
) -> Iterator[wire.ServerMessage]:
    while (event := loop.run(_next(events))) is not None:
        yield event


async def _next(events: AsyncIterator[wire.ServerMessage]) -> wire.ServerMessage | None:
    return await anext(events, None)


async def _await(work: Any) -> Any:
    return await work
