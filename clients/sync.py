"""The Python SDK without asyncio: the same names, and the same arguments, as in ``..clients``.

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
    """An open stream; see :class:`.sdk.Stream`. One thread may send while another iterates."""

    def __init__(self, loop: _Loop, stream: sdk.Stream) -> None:
        self._loop = loop
        self._stream = stream

    def send(self, pcm: bytes) -> None:
        """Send audio as the options declare it; raises ConnectionLost."""
        self._loop.run(self._stream.send(pcm))

    def flush(self) -> str:
        """Ask for all that was sent to be committed; returns the ``id`` of the Flushed that follows."""
        return self._loop.run(self._stream.flush())

    def end(self) -> None:
        """No more audio comes: the last words and Done follow, and the iteration ends."""
        self._loop.run(self._stream.end())

    def __iter__(self) -> Iterator[wire.ServerMessage]:
        return _iterate(self._loop, aiter(self._stream))


@contextmanager
def connect(
    url: str,
    *,
    key: str | None = None,
    reconnect_seconds: float = RECONNECT_SECONDS,
    **options: Unpack[StreamOptions],
) -> Iterator[Stream]:
    """Open a stream to the daemon at ``ws://host:port``; see :func:`.sdk.connect`."""
    with _loop() as loop:
        opened = sdk.connect(url, key=key, reconnect_seconds=reconnect_seconds, **options)
        stream = loop.run(_entered(opened.__aenter__()))
        try:
            yield Stream(loop, stream)
        finally:
            loop.run(_entered(opened.__aexit__(None, None, None)))


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
    """Transcribe any audio or video file; see :func:`.sdk.transcribe_file`."""
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
    """Yield events of what a microphone hears; see :func:`.sdk.transcribe_microphone`."""
    with _loop() as loop:
        events = sdk.transcribe_microphone(url, key=key, device=device, model=model, **options)
        try:
            yield from _iterate(loop, events)
        finally:
            loop.run(_entered(events.aclose()))


def _iterate(
    loop: _Loop, events: AsyncIterator[wire.ServerMessage]
) -> Iterator[wire.ServerMessage]:
    while (event := loop.run(_next(events))) is not None:
        yield event


async def _next(events: AsyncIterator[wire.ServerMessage]) -> wire.ServerMessage | None:
    return await anext(events, None)


async def _entered(work: Any) -> Any:
    return await work
