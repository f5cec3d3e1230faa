"""Plays an audio file to a server as if it were live, and shows what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from ..server import wire
from .embed import DaemonOptions, daemon
from .errors import ConnectionLost, SourceError, StreamError
from .output import OutputFile, Transcript
from .source import SAMPLE_RATE, AudioSource, Pacer
from .stream import RECONNECT_SECONDS, StreamConnection, connect, stream_url
from .terminal import Screen, loading, open_screen

__all__ = ["DRAIN_SECONDS", "PlayOptions", "Playback", "play"]

DRAIN_SECONDS = 10.0  # for the last words, after Ctrl-C
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """What to play, where to, and how to show it."""

    file: Path
    start: wire.Start = field(default_factory=wire.Start)
    speed: float = 1.0  # times real time; 0: as fast as the server takes it
    server: str | None = None  # None: an embedded daemon
    daemon: DaemonOptions = field(default_factory=DaemonOptions)
    json: bool = False
    output: Path | None = None
    color: bool = True


def play(options: PlayOptions) -> int:
    """Play a file and return the exit code: 0, 1 after an error, 130 or 143 after a signal.

    Whatever can be wrong with the input is found before a daemon is started.

    Raises:
        ClientError: with its own exit code, for what ended the command.
    """
    source = AudioSource(options.file)
    total = source.check()
    output = OutputFile(options.output) if options.output is not None else None
    if options.server is not None:
        stream_url(options.server)
    return asyncio.run(Playback(options, source, total, output).run())


class Playback:
    """One file on its way through one stream."""

    def __init__(
        self,
        options: PlayOptions,
        source: AudioSource,
        total: float | None,
        output: OutputFile | None,
    ) -> None:
        self._options = options
        self._source = source
        self._total = total  # seconds, None if unknown
        self._output = output
        self._transcript = Transcript()
        self._stop = asyncio.Event()  # no more audio shall be sent
        self._signal: int | None = None  # the first one received
        self._limit: asyncio.Timeout | None = None  # set while messages are received
        self._source_error: SourceError | None = None
        self._failed = False
        self._sent_all = False  # the whole recording went out

    async def run(self) -> int:
        """Play to the end, or until a signal; see :func:`play`."""
        with self._signals():
            try:
                async with AsyncExitStack() as stack:
                    url = self._options.server or await self._daemon(stack)
                    # our own daemon does not come back
                    patience = RECONNECT_SECONDS if self._options.server else 0.0
                    opened = connect(url, self._options.start, reconnect_seconds=patience)
                    await self._converse(await stack.enter_async_context(opened))
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
        if self._signal is not None:
            return 128 + self._signal
        return 1 if self._failed else 0

    async def _daemon(self, stack: AsyncExitStack) -> str:
        options = self._options
        with loading(f"loading {options.daemon.model}…", color=options.color):
            return await stack.enter_async_context(daemon(options.daemon))

    async def _converse(self, stream: StreamConnection) -> None:
        options = self._options
        screen = open_screen(
            json=options.json, paced=options.speed > 0, color=options.color, total=self._total
        )
        finished = False
        try:
            await self._exchange(stream, screen)
            finished = True
        except StreamError as error:
            if self._signal is None:
                raise
            screen.renderer.notice(_warning(str(error)))
        finally:
            if screen.bar is not None:
                screen.bar.close()
            screen.renderer.close(self._transcript)
            segments = self._transcript.complete()
            if self._output is not None and (segments or finished):
                self._output.write(segments)

    async def _exchange(self, stream: StreamConnection, screen: Screen) -> None:
        """Send and receive until the server is done."""
        try:
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send(stream))
                async with asyncio.timeout(None) as self._limit:
                    async for message in stream:
                        self._take(message, screen)
                sender.cancel()
        except ExceptionGroup as group:
            problem = group.exceptions[0]
            if isinstance(problem, TimeoutError):
                reason = (
                    f"the server was not done within {DRAIN_SECONDS:.0f} s; words may be missing"
                )
                problem = StreamError(reason)
            raise problem from None
        finally:
            self._limit = None
        if damaged := self._source.damaged_packets:
            text = f"{self._source.path}: {damaged} damaged packets were left out"
            screen.renderer.notice(_warning(text))
        if self._source_error is not None:
            raise self._source_error

    async def _send(self, stream: StreamConnection) -> None:
        pacer = Pacer(self._options.speed)
        sent = 0  # samples
        # The receiver reports a lost connection, with all that arrived before it was lost.
        with contextlib.suppress(ConnectionLost):
            try:
                async with aclosing(self._source.stream()) as chunks:
                    async for chunk in chunks:
                        sent += len(chunk) // 2
                        if await self._stopped_within(pacer.delay(sent)):
                            break
                        await stream.send_audio(chunk)
                    else:
                        self._sent_all = True
            except SourceError as error:
                self._source_error = error  # after the words of what could be read
            await stream.eos()

    async def _stopped_within(self, seconds: float) -> bool:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        return self._stop.is_set()

    def _take(self, message: wire.ServerMessage, screen: Screen) -> None:
        self._transcript.add(message)
        screen.renderer.show(message, self._transcript)
        match message:
            case wire.Ack() if screen.bar is not None:
                screen.bar.advance(message.samples / SAMPLE_RATE)
            case wire.Warning():
                screen.renderer.notice(_warning(message.message))
            case wire.Gap():
                span = f"{message.start:.2f} s to {message.end:.2f} s"
                text = f"nothing was transcribed from {span}: {message.reason}"
                self._failed = True
                screen.renderer.notice(_warning(text))
            case wire.Done() if not (self._sent_all or self._stop.is_set() or self._source_error):
                self._failed = True
                text = "the server stopped before the whole recording was sent"
                screen.renderer.notice(_warning(text))
            case wire.Error(fatal=False):
                self._failed = True
                screen.renderer.notice(f"whisper-stream: error: {message.message}")

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
        if first and self._limit is not None:
            self._stop.set()
            self._limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
        else:
            task.cancel()


def _warning(text: str) -> str:
    return f"whisper-stream: warning: {text}"
