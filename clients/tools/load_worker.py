"""One connection of a load, as light as can be: frames made beforehand go out, a few messages come in.

It has none of what a client for people needs: no reconnection, no acknowledgement, no backlog.

One stream of a load: audio at the pace of speech, and how long after it each word was committed.

One process of ``whisper-stream load``: plays its share of the streams, all in one event loop.

Its parent writes an assignment as a JSON line, reads ``ready``, writes ``go``, and reads the outcomes
as one line. When the parent's end of stdin closes before that, the process ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import websockets.exceptions as ws_errors
from websockets.asyncio.client import ClientConnection

from ...server.protocol import messages as wire
from ...server.protocol.codec import codec_for
from ...server.protocol.errors import ErrorCode
from ..errors import ConnectError, ConnectionLost, RemoteError, StreamError
from ..sdk.connection import dial, stream_url
from ..sources.files import CHUNK_SAMPLES, SAMPLE_RATE, AudioSource, Pacer
from .load_plan import PAUSE_SECONDS, StreamPlan

__all__ = [
    "Assignment",
    "DRAIN_SECONDS",
    "LoadLine",
    "Piece",
    "Share",
    "StreamOutcome",
    "cut",
    "main",
    "open_line",
    "play_stream",
]

_BYTES = 2  # of one sample
_CODEC = codec_for(wire.MSGPACK_SUBPROTOCOL)
_Heard = wire.Ready | wire.Commit | wire.Lag | wire.Gap | wire.Error | wire.Done
_DECODER: msgspec.msgpack.Decoder[_Heard] = msgspec.msgpack.Decoder(_Heard)


@dataclass(frozen=True, slots=True)
class Piece:
    """A tenth of a second of audio or less, as the frame that carries it."""

    samples: int
    frame: bytes


def cut(pcm: bytes) -> tuple[Piece, ...]:
    """Return s16le mono at 16 kHz as pieces; streams that play the same audio may share them."""
    return tuple(_pieces(pcm))


def _pieces(pcm: bytes) -> Iterator[Piece]:
    for at in range(0, len(pcm), CHUNK_SAMPLES * _BYTES):
        data = pcm[at : at + CHUNK_SAMPLES * _BYTES]
        frame = _CODEC.encode(wire.Audio(data=data))
        assert isinstance(frame, bytes)
        yield Piece(len(data) // _BYTES, frame)


@asynccontextmanager
async def open_line(url: str, start: wire.Start, key: str | None) -> AsyncIterator[LoadLine]:
    """Open a stream with ``start``; leaving the context closes it.

    Raises:
        ConnectError: no connection was made, or what answered is no whisper-stream server.
        UsageError: ``key`` can be no key.
    """
    socket = await dial(stream_url(url), _CODEC.subprotocol, key)
    try:
        line = LoadLine(socket)
        await line.send(_CODEC.encode(start))
        yield line
    finally:
        await socket.close()


class LoadLine:
    """An open stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, frame: str | bytes) -> None:
        """Send a frame; nothing happens once the connection has ended: whoever receives is told."""
        try:
            await self.socket.send(frame)
        except ws_errors.ConnectionClosed:
            return

    async def end(self) -> None:
        """Say that no more audio comes."""
        await self.send(_CODEC.encode(wire.Eos()))

    async def messages(self) -> AsyncIterator[_Heard]:
        """What is heard, up to ``done``.

        Raises:
            RemoteError: the server ended the stream with an error.
            ConnectionLost: the connection ended before.
            StreamError: what came is no message.
        """
        while True:
            try:
                frame = await self.socket.recv()
                message = _DECODER.decode(frame if isinstance(frame, bytes) else frame.encode())
            except msgspec.ValidationError:
                continue  # a message that tells nothing about the load
            except msgspec.DecodeError:
                raise StreamError("the server sent what is no message") from None
            except ws_errors.ConnectionClosed as error:
                raise _lost(error) from None
            yield message
            if isinstance(message, wire.Done):
                return
            if isinstance(message, wire.Error) and message.fatal:
                raise RemoteError(message.code, message.message, message.field)


def _lost(error: ws_errors.ConnectionClosed) -> ConnectionLost:
    if error.rcvd is None:
        return ConnectionLost("the connection to the server was lost before the stream was done")
    text = f"the server closed the connection before the stream was done (code {error.rcvd.code})"
    return ConnectionLost(text, error.rcvd.code, error.rcvd.reason)


DRAIN_SECONDS = 60.0  # for the last words, once all audio is sent
_SILENCE = cut(bytes(round(PAUSE_SECONDS * SAMPLE_RATE) * 2))
_FULL_STATUS = (429, 503)
_TRY_AGAIN_LATER = 1013
_FULL = (ErrorCode.TOO_MANY_STREAMS, "overloaded", "limit_reached")


class StreamOutcome(msgspec.Struct, kw_only=True):
    """What one stream came to. ``refused`` and ``failed`` say why, where it was so."""

    stream: int
    audio_seconds: float = 0.0  # sent
    delays: list[float] = []  # seconds from a word's end in speech to its commit, in order
    text: str = ""
    lag_max: float = 0.0  # seconds behind, as the server said
    late_max: float = 0.0  # seconds that this end sent audio too late: it or the server is slow
    refused: str | None = None
    failed: str | None = None


async def play_stream(
    plan: StreamPlan, audio: Sequence[Sequence[Piece]], url: str, key: str | None = None
) -> StreamOutcome:
    """Play ``audio``, the pieces of each clip, on one connection; never raises StreamError."""
    await asyncio.sleep(plan.delay)
    play = _Play(plan, audio)
    try:
        async with open_line(url, wire.Start(language=plan.language), key) as line:
            await play.converse(line)
    except StreamError as error:
        reason = None if play.opened else _refusal(error)
        play.outcome.refused = reason
        play.outcome.failed = str(error) if reason is None else None
    return play.outcome


def _refusal(error: StreamError) -> str | None:
    """Why the server had no room for the stream, if that is what the error says."""
    match error:
        case ConnectError(status=status) if status in _FULL_STATUS:
            return f"HTTP {status}"
        case ConnectionLost(code=code) if code == _TRY_AGAIN_LATER:
            return error.reason or f"closed with {code}"
        case RemoteError(code=name) if name in _FULL:
            return name
    return None


class _Play:
    def __init__(self, plan: StreamPlan, audio: Sequence[Sequence[Piece]]) -> None:
        self._pieces: list[Piece] = []
        for number, pieces in enumerate(audio):
            self._pieces += [*(_SILENCE if number else ()), *pieces]
        self._began = 0.0  # when the first sample was spoken, on the loop's clock
        self.opened = False
        self.outcome = StreamOutcome(stream=plan.stream, delays=[])

    async def converse(self, line: LoadLine) -> None:
        """Send all, and take messages until the server is done."""
        length = sum(piece.samples for piece in self._pieces) / SAMPLE_RATE
        try:
            async with asyncio.timeout(length + DRAIN_SECONDS):
                async with asyncio.TaskGroup() as group:
                    sender = group.create_task(self._send(line))
                    async for message in line.messages():
                        self._take(message)
                    sender.cancel()
        except TimeoutError:
            raise StreamError(f"the server was not done {DRAIN_SECONDS:.0f} s later") from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _send(self, line: LoadLine) -> None:
        clock = asyncio.get_running_loop().time
        self._began = clock()
        pacer = Pacer(1.0, clock)
        pacer.delay(0)
        due = 0
        for piece in self._pieces:
            due += piece.samples
            await asyncio.sleep(pacer.delay(due))
            late = clock() - self._began - due / SAMPLE_RATE
            self.outcome.late_max = max(self.outcome.late_max, late)
            await line.send(piece.frame)
            self.outcome.audio_seconds = due / SAMPLE_RATE
        await line.end()

    def _take(self, message: wire.ServerMessage) -> None:
        now = asyncio.get_running_loop().time()
        outcome = self.outcome
        match message:
            case wire.Ready():
                self.opened = True
            case wire.Commit(words=words):
                outcome.delays += [now - self._began - word.end for word in words]
                outcome.text += message.text
            case wire.Lag(behind=behind):
                outcome.lag_max = max(outcome.lag_max, behind)
            case wire.Gap(start=start, end=end, reason=reason):
                outcome.failed = f"{end - start:.2f} s were not transcribed: {reason}"


READY, GO = b"ready\n", b"go\n"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    plans: tuple[StreamPlan, ...]
    key: str | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """What an assignment came to; ``cpu_seconds`` were used for playing it."""

    outcomes: list[StreamOutcome]
    cpu_seconds: float


def main() -> int:
    """Run one assignment; return the exit code."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    # Decoded before the clock starts: the run itself shall cost this machine as little as it can.
    paths = {clip.path for plan in assignment.plans for clip in plan.clips}
    audio = {path: cut(b"".join(AudioSource(path).chunks())) for path in sorted(paths)}
    _say(READY)
    if sys.stdin.buffer.readline() != GO:
        return 1
    threading.Thread(target=_end_with_parent, daemon=True).start()
    before = time.process_time()
    outcomes = asyncio.run(_play(assignment, audio))
    share = Share(outcomes=outcomes, cpu_seconds=time.process_time() - before)
    _say(msgspec.json.encode(share) + b"\n")
    return 0


async def _play(assignment: Assignment, audio: dict[str, tuple[Piece, ...]]) -> list[StreamOutcome]:
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(
                play_stream(
                    plan,
                    [audio[clip.path] for clip in plan.clips],
                    assignment.url,
                    assignment.key,
                )
            )
            for plan in assignment.plans
        ]
    return [task.result() for task in tasks]


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
