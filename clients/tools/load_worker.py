"""One process of ``whisper-stream load``: plays its share of the streams, all in one event loop.

Its parent writes an assignment as a JSON line, reads ``ready``, writes ``go``, and reads the outcomes
as one line. When the parent's end of stdin closes before that, the process ends.

A connection of a load is as light as can be: frames made beforehand go out, and few types of messages come
in. It has none of what a client for people needs: no reconnection, no acknowledgement, no backlog.
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
    "LoadConnection",
    "AudioPacket",
    "Share",
    "StreamOutcome",
    "cut_packets",
    "main",
    "open_connection",
    "play_stream",
]

_BYTES = 2  # of one sample
_CODEC = codec_for(wire.MSGPACK_SUBPROTOCOL)
_Message = wire.Ready | wire.Commit | wire.Lag | wire.Gap | wire.Error | wire.Done
_DECODER: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


@dataclass(frozen=True, slots=True)
class AudioPacket:
    """A tenth of a second of audio or less, as the websocket frame that carries it."""

    samples: int
    frame: bytes


def cut_packets(pcm: bytes) -> tuple[AudioPacket, ...]:
    """Return s16le mono at 16 kHz as packets, which streams that play the same audio may share."""
    return tuple(_packets(pcm))


def _packets(pcm: bytes) -> Iterator[AudioPacket]:
    for at in range(0, len(pcm), CHUNK_SAMPLES * _BYTES):
        data = pcm[at : at + CHUNK_SAMPLES * _BYTES]
        frame = _CODEC.encode(wire.Audio(data=data))
        assert isinstance(frame, bytes)
        yield AudioPacket(len(data) // _BYTES, frame)


@asynccontextmanager
async def open_connection(
    url: str, start: wire.Start, key: str | None
) -> AsyncIterator[LoadConnection]:
    """Open a stream with ``start``; leaving the context closes it.

    Raises:
        ConnectError: no connection was made, or what answered is no whisper-stream server.
        UsageError: ``key`` has characters that no header can carry.
    """
    socket = await dial(stream_url(url), _CODEC.subprotocol, key)
    try:
        connection = LoadConnection(socket)
        await connection.send(_CODEC.encode(start))
        yield connection
    finally:
        await socket.close()


class LoadConnection:
    """An open connection with one stream."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, frame: str | bytes) -> None:
        """Send a frame; does nothing once the connection has ended, which ``messages`` reports."""
        try:
            await self.socket.send(frame)
        except ws_errors.ConnectionClosed:
            return

    async def end(self) -> None:
        """Declare the end of the audio."""
        await self.send(_CODEC.encode(wire.Eos()))

    async def messages(self) -> AsyncIterator[_Message]:
        """Yield the messages that say something about the load, up to ``done``.

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
                raise _connection_lost(error) from None
            yield message
            if isinstance(message, wire.Done):
                return
            if isinstance(message, wire.Error) and message.fatal:
                raise RemoteError(message.code, message.message, message.field)


def _connection_lost(error: ws_errors.ConnectionClosed) -> ConnectionLost:
    if error.rcvd is None:
        return ConnectionLost("the connection to the server was lost before the stream was done")
    text = f"the server closed the connection before the stream was done (code {error.rcvd.code})"
    return ConnectionLost(text, error.rcvd.code, error.rcvd.reason)


DRAIN_SECONDS = 60.0  # for the last words, once all audio is sent
_SILENCE = cut_packets(bytes(round(PAUSE_SECONDS * SAMPLE_RATE) * 2))
_FULL_STATUS = (429, 503)
_TRY_AGAIN_LATER = 1013
_FULL = (ErrorCode.TOO_MANY_STREAMS, "overloaded", "limit_reached")


class StreamOutcome(msgspec.Struct, kw_only=True):
    """The result of one stream.

    Attributes:
        stream: its number.
        audio_seconds: audio sent.
        delays: seconds from each word's end in speech to its commit.
        text: all that was committed.
        lag_max: most seconds that the server said to be behind.
        late_max: most seconds that this end sent audio too late, because it or the server is slow.
        refused: why the server did not take the stream; None if it did.
        failed: why the stream ended early or lost audio; None if it did not.
    """

    stream: int
    audio_seconds: float = 0.0
    delays: list[float] = []
    text: str = ""
    lag_max: float = 0.0
    late_max: float = 0.0
    refused: str | None = None
    failed: str | None = None


async def play_stream(
    plan: StreamPlan, audio: Sequence[Sequence[AudioPacket]], url: str, key: str | None = None
) -> StreamOutcome:
    """Play one stream on one connection; errors of the stream are part of the outcome.

    Args:
        plan: when it begins, and in which language.
        audio: the packets of each clip.
        url: the daemon's address.
        key: the API key, where the daemon wants one.
    """
    await asyncio.sleep(plan.delay)
    play = _Play(plan, audio)
    try:
        async with open_connection(url, wire.Start(language=plan.language), key) as connection:
            await play.converse(connection)
    except StreamError as error:
        reason = None if play.opened else _refusal(error)
        play.outcome.refused = reason
        play.outcome.failed = str(error) if reason is None else None
    return play.outcome


def _refusal(error: StreamError) -> str | None:
    """Return why the server had no room for the stream; None for an error of another kind."""
    match error:
        case ConnectError(status=status) if status in _FULL_STATUS:
            return f"HTTP {status}"
        case ConnectionLost(code=code) if code == _TRY_AGAIN_LATER:
            return error.reason or f"closed with {code}"
        case RemoteError(code=name) if name in _FULL:
            return name
    return None


class _Play:
    def __init__(self, plan: StreamPlan, audio: Sequence[Sequence[AudioPacket]]) -> None:
        self._packets: list[AudioPacket] = []
        for number, packets in enumerate(audio):
            self._packets += [*(_SILENCE if number else ()), *packets]
        self._began = 0.0  # when the first sample was spoken, on the loop's clock
        self.opened = False
        self.outcome = StreamOutcome(stream=plan.stream, delays=[])

    async def converse(self, connection: LoadConnection) -> None:
        """Send all packets, and take messages until the server is done."""
        length = sum(packet.samples for packet in self._packets) / SAMPLE_RATE
        try:
            async with asyncio.timeout(length + DRAIN_SECONDS):
                async with asyncio.TaskGroup() as group:
                    sender = group.create_task(self._send(connection))
                    async for message in connection.messages():
                        self._take(message)
                    sender.cancel()
        except TimeoutError:
            raise StreamError(f"the server was not done {DRAIN_SECONDS:.0f} s later") from None
        except ExceptionGroup as group_error:
            raise group_error.exceptions[0] from None

    async def _send(self, connection: LoadConnection) -> None:
        clock = asyncio.get_running_loop().time
        self._began = clock()
        pacer = Pacer(1.0, clock)
        pacer.delay(0)
        due = 0
        for packet in self._packets:
            due += packet.samples
            await asyncio.sleep(pacer.delay(due))
            late = clock() - self._began - due / SAMPLE_RATE
            self.outcome.late_max = max(self.outcome.late_max, late)
            await connection.send(packet.frame)
            self.outcome.audio_seconds = due / SAMPLE_RATE
        await connection.end()

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
    """The streams that one process plays, and the daemon that it plays them to."""

    url: str
    plans: tuple[StreamPlan, ...]
    key: str | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of an assignment, and the processor time that playing it took."""

    outcomes: list[StreamOutcome]
    cpu_seconds: float


def main() -> int:
    """Run one assignment; return the exit code."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    # Decoded before the clock starts: the run itself shall cost this machine as little as it can.
    paths = {clip.path for plan in assignment.plans for clip in plan.clips}
    audio = {path: cut_packets(b"".join(AudioSource(path).chunks())) for path in sorted(paths)}
    _write_line(READY)
    if sys.stdin.buffer.readline() != GO:
        return 1
    threading.Thread(target=_end_with_parent, daemon=True).start()
    before = time.process_time()
    outcomes = asyncio.run(_play(assignment, audio))
    share = Share(outcomes=outcomes, cpu_seconds=time.process_time() - before)
    _write_line(msgspec.json.encode(share) + b"\n")
    return 0


async def _play(
    assignment: Assignment, audio: dict[str, tuple[AudioPacket, ...]]
) -> list[StreamOutcome]:
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


def _write_line(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
