"""One source on its way through one stream: audio out, captions in, the transcript kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from rich.text import Text

from ..server import wire
from .embed import DaemonOptions
from .errors import ConnectionLost, SourceError, StreamError
from .output import OutputFile, Transcript
from .source import SAMPLE_RATE, Pacer, Source
from .stream import StreamConnection
from .terminal import Screen, open_screen
from .timeline import Timeline

__all__ = ["DRAIN_SECONDS", "PlayOptions", "Playback", "Track"]

DRAIN_SECONDS = 10.0  # for the last words, after Ctrl-C
_TICK_SECONDS = 0.2  # between updates of a meter
_SAVE_SECONDS = 1.0  # between two writes of a growing transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """Where to play to, and how to show it."""

    start: wire.Start = field(default_factory=wire.Start)
    server: str | None = None  # None: an embedded daemon
    key: str | None = field(default=None, repr=False)  # of the server, where it wants one
    daemon: DaemonOptions = field(default_factory=DaemonOptions)
    json: bool = False
    color: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """What to play.

    ``speed`` is in times real time; 0: as fast as the server takes it; None: the source comes in
    its own time. ``status`` is shown below live captions, again and again.
    """

    source: Source
    total: float | None = None  # seconds, None if unknown
    output: OutputFile | None = None
    speed: float | None = 1.0
    status: Callable[[], Text] | None = None
    timeline: Timeline | None = None


class Playback:
    """One track on its way through one stream. ``failed``: something is missing or went wrong."""

    def __init__(self, options: PlayOptions, track: Track, stop: asyncio.Event) -> None:
        """Once ``stop`` is set no more audio is sent."""
        self._options = options
        self._track = track
        self._stop = stop
        self._transcript = Transcript()
        self._limit: asyncio.Timeout | None = None  # set while messages are received
        self._source_error: SourceError | None = None
        self._doubted = False
        self._sent_all = False  # the whole recording went out
        self._saved = -_SAVE_SECONDS
        self.failed = False
        self.screen: Screen | None = None

    def drain(self) -> bool:
        """Wait no longer than DRAIN_SECONDS for the last words; False if none are awaited."""
        if self._limit is None:
            return False
        self._limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
        return True

    async def converse(self, stream: StreamConnection) -> None:
        """Send and receive until the server is done; leave screen and file as they shall stay."""
        options, track = self._options, self._track
        self.screen = screen = open_screen(
            json=options.json,
            paced=track.speed != 0,
            color=options.color,
            total=track.total,
            status=track.status,
        )
        stream.on_lost = screen.renderer.lost
        finished = False
        try:
            await self._exchange(stream, screen)
            finished = True
        except StreamError as error:
            if not self._stop.is_set():
                raise
            screen.renderer.notice(_warning(str(error)))
        finally:
            if screen.bar is not None:
                screen.bar.close()
            screen.renderer.close(self._transcript)
            segments = self._transcript.complete()
            if track.output is not None and (segments or finished):
                track.output.write(segments)
            if track.timeline is not None:
                track.timeline.write()

    async def _exchange(self, stream: StreamConnection, screen: Screen) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                others = [group.create_task(self._send(stream))]
                if self._track.status is not None:
                    others.append(group.create_task(_tick(screen)))
                async with asyncio.timeout(None) as self._limit:
                    async for message in stream:
                        self._take(message, screen)
                for other in others:
                    other.cancel()
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
        self._doubt(screen)
        if damage := self._track.source.damage:
            screen.renderer.notice(_warning(damage))
        if self._source_error is not None:
            raise self._source_error

    async def _send(self, stream: StreamConnection) -> None:
        pacer = Pacer(self._track.speed or 0)
        sent = 0  # samples
        # The receiver reports a lost connection, with all that arrived before it was lost.
        with contextlib.suppress(ConnectionLost):
            try:
                async with aclosing(self._track.source.stream()) as chunks:
                    while (chunk := await self._next(chunks)) is not None:
                        sent += len(chunk) // 2
                        self._doubt(self.screen)
                        if await self._stopped_within(pacer.delay(sent)):
                            break
                        if self._track.timeline is not None:
                            self._track.timeline.sent(chunk)
                        await stream.send_audio(chunk)
                    else:
                        self._sent_all = not self._stop.is_set()
            except SourceError as error:
                self._source_error = error  # after the words of what could be read
            await stream.eos()

    def _doubt(self, screen: Screen | None) -> None:
        """Say it at once: a pipe may never end."""
        doubt = self._track.source.doubt
        if doubt is not None and screen is not None and not self._doubted:
            self._doubted = True
            screen.renderer.notice(_warning(doubt))

    async def _next(self, chunks: AsyncGenerator[bytes, None]) -> bytes | None:
        """The next piece; None at the end, or once nothing more shall be sent."""
        stopping = asyncio.ensure_future(self._stop.wait())
        following = asyncio.ensure_future(anext(chunks, None))
        try:
            await asyncio.wait({stopping, following}, return_when=asyncio.FIRST_COMPLETED)
            return following.result() if following.done() else None
        finally:
            stopping.cancel()
            if not following.done():
                following.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await following

    async def _stopped_within(self, seconds: float) -> bool:
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        return self._stop.is_set()

    def _take(self, message: wire.ServerMessage, screen: Screen) -> None:
        self._transcript.add(message)
        if self._track.timeline is not None:
            self._track.timeline.received(message)
        screen.renderer.show(message, self._transcript)
        match message:
            case wire.Segment():
                self._save()
            case wire.Ack() if screen.bar is not None:
                screen.bar.advance(message.samples / SAMPLE_RATE)
            case wire.Warning():
                screen.renderer.notice(_warning(message.message))
            case wire.Gap():
                span = f"{message.start:.2f} s to {message.end:.2f} s"
                text = f"nothing was transcribed from {span}: {message.reason}"
                self.failed = True
                screen.renderer.notice(_warning(text))
            case wire.Done() if not (self._sent_all or self._stop.is_set() or self._source_error):
                self.failed = True
                text = "the server stopped before the whole recording was sent"
                screen.renderer.notice(_warning(text))
            case wire.Error(fatal=False):
                self.failed = True
                screen.renderer.notice(f"whisper-stream: error: {message.message}")

    def _save(self) -> None:
        """Write what is closed so far: whatever ends this process, the file holds it."""
        now = asyncio.get_running_loop().time()
        if self._track.output is not None and now - self._saved >= _SAVE_SECONDS:
            self._saved = now
            self._track.output.write(self._transcript.complete())


async def _tick(screen: Screen) -> None:
    while True:
        await asyncio.sleep(_TICK_SECONDS)
        screen.renderer.tick()


def _warning(text: str) -> str:
    return f"whisper-stream: warning: {text}"
