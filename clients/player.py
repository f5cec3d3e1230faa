"""Plays tracks one after the other: the daemon for all of them, and the signals that end them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

from .embed import daemon
from .play import Playback, PlayOptions, Track
from .stream import RECONNECT_SECONDS, connect, stream_url
from .terminal import loading, print_notice

__all__ = ["play"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def play(options: PlayOptions, tracks: Sequence[Track]) -> int:
    """Play tracks and return the exit code: 0, 1 after an error, 130 or 143 after a signal.

    Raises:
        ClientError: with its own exit code, for what ended the command.
    """
    if options.server is not None:
        stream_url(options.server)
    return asyncio.run(_Player(options, tracks).run())


class _Player:
    def __init__(self, options: PlayOptions, tracks: Sequence[Track]) -> None:
        self._options = options
        self._tracks = tracks
        self._stop = asyncio.Event()  # no more audio shall be sent
        self._signal: int | None = None  # the first one received
        self._playback: Playback | None = None

    async def run(self) -> int:
        failed = False
        with self._signals():
            try:
                async with AsyncExitStack() as stack:
                    url = self._options.server or await self._daemon(stack)
                    for track in self._tracks:
                        failed |= await self._play(url, track)
                        if self._stop.is_set():
                            break
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
        if self._signal is not None:
            return 128 + self._signal
        return 1 if failed else 0

    async def _daemon(self, stack: AsyncExitStack) -> str:
        options = self._options
        with loading(f"loading {options.daemon.model}…", color=options.color):
            return await stack.enter_async_context(daemon(options.daemon))

    async def _play(self, url: str, track: Track) -> bool:
        if len(self._tracks) > 1 and not self._options.json:
            print_notice(f"{track.source.name}:")
        # Our own daemon does not come back.
        patience = RECONNECT_SECONDS if self._options.server else 0.0
        start, key = self._options.start, self._options.key
        async with connect(url, start, reconnect_seconds=patience, key=key) as stream:
            self._playback = Playback(self._options, track, self._stop)
            await self._playback.converse(stream)
            return self._playback.failed

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal ends the audio and waits for the last words; a second one gives up."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number, task)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: int, task: asyncio.Task[int]) -> None:
        first = self._signal is None
        if first:
            self._signal = number
        if first and self._playback is not None and self._playback.drain():
            self._stop.set()
        else:
            task.cancel()
