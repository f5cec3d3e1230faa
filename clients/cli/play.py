"""``whisper-stream FILE…``: captions of files, of standard input, or of an address.

Sources are played one after the other, each through a stream of its own, to one daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import difflib
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from rich.text import Text

from ... import __version__
from ...server.flags import FlagParser
from ...server.protocol import messages as wire
from ..errors import ConnectionLost, SourceError, StreamError, UsageError
from ..sdk.connection import RECONNECT_SECONDS, ReconnectingStream, connect, stream_url
from ..sdk.embed import DaemonOptions, daemon
from ..sdk.transcript import LiveTranscript, OutputFile
from ..sources.files import SAMPLE_RATE, AudioSource, Pacer, Source
from ..sources.pipes import PcmFormat, PipeSource, UrlSource
from .args import (
    add_daemon_flags,
    add_server_flags,
    command_parser,
    daemon_options,
    server_key,
)
from .flag_values import iso_code, iso_codes, number_from_zero, whole_between
from .main import COMMANDS, PROGRAM
from .terminal import Screen, loading, open_screen, print_notice
from .timeline import Timeline

__all__ = [
    "DRAIN_SECONDS",
    "PlayOptions",
    "Playback",
    "Track",
    "add_stream_flags",
    "main",
    "play",
    "play_options",
]

DRAIN_SECONDS = 10.0  # for the last words, after Ctrl-C
_TICK_SECONDS = 0.2  # between updates of a meter
_SAVE_SECONDS = 1.0  # between two writes of a growing transcript


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """The daemon to play to, the stream's options, and how captions are shown."""

    start: wire.Start = field(default_factory=wire.Start)
    server: str | None = None  # None: an embedded daemon
    key: str | None = field(default=None, repr=False)  # of the server, where it wants one
    daemon: DaemonOptions = field(default_factory=DaemonOptions)
    json: bool = False
    color: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One source to play, and the files to write for it.

    Attributes:
        source: gives the audio.
        total: seconds of audio; None if that is unknown.
        output: the file of the transcript.
        speed: times real time; 0: as fast as the server takes it; None: the source sets the pace.
        status: returns the line below live captions, again and again.
        timeline: the page of the stream.
    """

    source: Source
    total: float | None = None
    output: OutputFile | None = None
    speed: float | None = 1.0
    status: Callable[[], Text] | None = None
    timeline: Timeline | None = None


class Playback:
    """One track on its way through one stream: audio out, captions in, the transcript kept.

    Args:
        options: how captions are shown.
        track: the source, and the files to write.
        stop: no more audio is sent once it is set.

    Attributes:
        failed: words are missing, or the server reported an error.
    """

    def __init__(self, options: PlayOptions, track: Track, stop: asyncio.Event) -> None:
        self._options = options
        self._track = track
        self._stop = stop
        self._transcript = LiveTranscript()
        self._limit: asyncio.Timeout | None = None  # set while messages are received
        self._source_error: SourceError | None = None
        self._doubted = False
        self._sent_all = False  # the whole recording went out
        self._saved = -_SAVE_SECONDS
        self.failed = False
        self._screen: Screen | None = None

    def show_reconnecting(self) -> None:
        """Show that the connection is lost and being made again."""
        if self._screen is not None:
            self._screen.renderer.show_reconnecting()

    def drain(self) -> bool:
        """Limit the wait for the last words to DRAIN_SECONDS; return whether any are awaited."""
        if self._limit is None:
            return False
        self._limit.reschedule(asyncio.get_running_loop().time() + DRAIN_SECONDS)
        return True

    async def converse(self, stream: ReconnectingStream) -> None:
        """Send and receive until the server is done; then close the screen and write the files.

        Raises:
            StreamError: the stream ended early, though nobody asked for that.
            SourceError: the source could not be read to its end.
            OutputError: a file cannot be written.
        """
        options, track = self._options, self._track
        self._screen = screen = open_screen(
            json=options.json,
            paced=track.speed != 0,
            color=options.color,
            total=track.total,
            status=track.status,
        )
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

    async def _exchange(self, stream: ReconnectingStream, screen: Screen) -> None:
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
        self._report_doubt()
        if damage := self._track.source.damage:
            screen.renderer.notice(_warning(damage))
        if self._source_error is not None:
            raise self._source_error

    async def _send(self, stream: ReconnectingStream) -> None:
        pacer = Pacer(self._track.speed or 0)
        sent = 0  # samples
        # The receiver reports a lost connection, with all that arrived before it was lost.
        with contextlib.suppress(ConnectionLost):
            try:
                async with aclosing(self._track.source.stream()) as chunks:
                    while (chunk := await self._next(chunks)) is not None:
                        sent += len(chunk) // 2
                        self._report_doubt()
                        if await self._wait_for_stop(pacer.delay(sent)):
                            break
                        if self._track.timeline is not None:
                            self._track.timeline.add_audio(chunk)
                        await stream.send_audio(chunk)
                    else:
                        self._sent_all = not self._stop.is_set()
            except SourceError as error:
                self._source_error = error  # after the words of what could be read
            await stream.eos()

    def _report_doubt(self) -> None:
        """Warn once, and at once, of audio that can hardly be what it was said to be: a pipe may never end."""
        doubt = self._track.source.doubt
        if doubt is not None and self._screen is not None and not self._doubted:
            self._doubted = True
            self._screen.renderer.notice(_warning(doubt))

    async def _next(self, chunks: AsyncGenerator[bytes, None]) -> bytes | None:
        """Return the next piece; None at the end, or once ``stop`` is set."""
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

    async def _wait_for_stop(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for ``stop``; return whether it is set."""
        if seconds > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
        return self._stop.is_set()

    def _take(self, message: wire.ServerMessage, screen: Screen) -> None:
        self._transcript.add(message)
        if self._track.timeline is not None:
            self._track.timeline.add_message(message)
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
                screen.renderer.notice(f"{PROGRAM}: error: {message.message}")

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
    return f"{PROGRAM}: warning: {text}"


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def play(options: PlayOptions, tracks: Sequence[Track]) -> int:
    """Play tracks one after the other, to one daemon.

    Returns:
        The exit code: 0, 1 if something is missing, 130 or 143 after a signal.

    Raises:
        ClientError: with its own exit code, for what ended the command.
    """
    if options.server is not None:
        stream_url(options.server)
    return asyncio.run(_Player(options, tracks).run())


class _Player:
    """Plays all tracks: the daemon for them, and the signals that end them."""

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
        playback = Playback(self._options, track, self._stop)
        async with connect(
            url,
            self._options.start,
            reconnect_seconds=patience,
            key=self._options.key,
            on_lost=playback.show_reconnecting,
        ) as stream:
            self._playback = playback
            await playback.converse(stream)
            return playback.failed

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first signal ends the audio and waits for the last words; a second one gives up."""
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._handle_signal, number, task)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _handle_signal(self, number: int, task: asyncio.Task[int]) -> None:
        first = self._signal is None
        if first:
            self._signal = number
        if first and self._playback is not None and self._playback.drain():
            self._stop.set()
        else:
            task.cancel()


_ENCODINGS = ("s16le", "f32le")


def main(argv: Sequence[str]) -> int:
    """Play the files and addresses that ``argv`` names; return the exit code.

    Mistakes in the input are found before a daemon is started.

    Raises:
        ClientError: with its own exit code.
    """
    parsed = _parser().parse_args(argv)
    _check_combination(parsed)
    options = play_options(parsed)
    tracks = _tracks(parsed)
    return play(options, tracks)


def add_stream_flags(add: Callable[..., Any]) -> None:
    """Add the flags of the stream, of what is shown and written, and of a daemon that runs already.

    Args:
        add: the ``add_argument`` of a parser.
    """
    add("--language", type=iso_code, metavar="CODE", help="such as en or de (default: detected)")
    add(
        "--task",
        choices=("transcribe", "translate"),
        default="transcribe",
        help="translate: into English (default: transcribe)",
    )
    add(
        "--languages",
        type=iso_codes,
        default=(),
        metavar="CODES",
        help="that may be detected, such as en,de (default: any)",
    )
    add("--prompt", default="", metavar="TEXT", help="context or vocabulary to expect")
    add("--hotwords", default="", metavar="TEXT", help="words to expect, such as names")
    add("--json", action="store_true", help="print every message of the server as a JSON line")
    add("--output", metavar="FILE", help="write the transcript as .srt, .vtt, .txt or .json")
    add("--timeline", metavar="FILE", help="write a page that shows when each word came, as .html")
    add("--no-color", dest="color", action="store_false", help="captions without colors")
    add_server_flags(add)


def play_options(parsed: argparse.Namespace, *, device_flag: str = "--device") -> PlayOptions:
    """Return the options that the flags of stream and daemon ask for.

    Raises:
        UsageError: a flag of the embedded daemon beside ``--server``, or a key without one.
    """
    return PlayOptions(
        start=wire.Start(
            language=parsed.language,
            languages=parsed.languages,
            task=parsed.task,
            prompt=parsed.prompt,
            hotwords=parsed.hotwords,
        ),
        server=parsed.server,
        key=server_key(parsed),
        daemon=daemon_options(parsed, device_flag=device_flag),
        json=parsed.json,
        color=parsed.color,
    )


def _tracks(parsed: argparse.Namespace) -> list[Track]:
    tracks = []
    for file in parsed.files:
        pipe = file == "-"
        source = PipeSource(_pcm_format(parsed)) if pipe else AudioSource(Path(file))
        tracks.append(
            Track(
                source=source,
                total=source.check(),
                **_files(parsed, "stdin" if pipe else Path(file).stem, source.name),
                speed=None if pipe else parsed.speed,
            )
        )
    if parsed.url is not None:
        address = UrlSource(parsed.url)
        stem = Path(address.name).stem or "stream"
        track = Track(
            source=address,
            total=address.check(),
            speed=parsed.speed,
            **_files(parsed, stem, address.name),
        )
        tracks.append(track)
    return tracks


class _Files(TypedDict):
    output: OutputFile | None
    timeline: Timeline | None


def _files(parsed: argparse.Namespace, stem: str, name: str) -> _Files:
    """The files to write for one source; ``{}`` in a name becomes ``stem``."""

    def path(template: str) -> Path:
        return Path(template.replace("{}", stem))

    return _Files(
        output=OutputFile(path(parsed.output)) if parsed.output is not None else None,
        timeline=Timeline(path(parsed.timeline), name) if parsed.timeline is not None else None,
    )


def _pcm_format(parsed: argparse.Namespace) -> PcmFormat | None:
    if parsed.encoding is parsed.sample_rate is parsed.channels is None:
        return None
    return PcmFormat(
        encoding=parsed.encoding or "s16le",
        sample_rate=parsed.sample_rate or 16_000,
        channels=parsed.channels or 1,
    )


def _check_combination(parsed: argparse.Namespace) -> None:
    files = parsed.files
    if not files and parsed.url is None:
        raise UsageError(f"name an audio file or a command; see `{PROGRAM} --help`")
    if files and re.fullmatch(r"[a-z]+", files[0]) and not os.path.exists(files[0]):
        near = difflib.get_close_matches(files[0], COMMANDS, n=1, cutoff=0.7)
        hint = f"did you mean {near[0]}? See" if near else "see"
        raise UsageError(
            f"{files[0]!r} is neither a file nor a command ({', '.join(COMMANDS)}); "
            f"{hint} `{PROGRAM} --help`"
        )
    if files.count("-") > 1:
        raise UsageError("standard input can be read once only; name - once")
    several = len(files) + (parsed.url is not None) > 1
    for flag, name in (("--output", parsed.output), ("--timeline", parsed.timeline)):
        if several and name is not None and "{}" not in name:
            raise UsageError(
                f"{flag} of several files needs {{}} for each one's name, as in '{{}}.srt'"
            )
    if "-" not in files:
        for name in ("encoding", "sample_rate", "channels"):
            if getattr(parsed, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} is for raw audio on standard input; name - as the file")


def _parser() -> FlagParser:
    listed = "\n".join(f"  {name:<20}  {command.help}" for name, command in COMMANDS.items())
    parser = command_parser(
        "",
        usage=f"{PROGRAM} FILE... [options]\n       {PROGRAM} COMMAND [options]",
        description="Caption audio as if it were spoken now.",
        epilog=f"commands (each with its own --help):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    files = "audio or video files, one after the other; - reads standard input"
    add("files", metavar="FILE", nargs="*", help=files)
    add("--url", metavar="URL", help="audio at an http, https, rtsp or HLS address")
    add("--version", action="version", version=f"{PROGRAM} {__version__}")
    add(
        "--speed",
        type=number_from_zero,
        default=1.0,
        metavar="N",
        help="times real time; 0: as fast as the engine takes it (default: 1)",
    )
    add_stream_flags(add)
    add_daemon_flags(parser)
    raw = parser.add_argument_group(
        "options of raw audio on standard input (default: look; what is no container is s16le)"
    )
    add = raw.add_argument
    add("--encoding", choices=_ENCODINGS, help="how a sample is stored (default: s16le)")
    add(
        "--sample-rate",
        type=whole_between(1_000, 768_000),
        metavar="HZ",
        help="samples a second (default: 16000)",
    )
    add(
        "--channels",
        type=whole_between(1, 32),
        metavar="N",
        help="interleaved channels (default: 1)",
    )
    return parser
