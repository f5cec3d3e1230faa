"""One connection of a load, as light as can be: frames made beforehand go out, a few messages come in.

It has none of what a client for people needs: no reconnection, no acknowledgement, no backlog.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import websockets.exceptions as ws_errors
from websockets.asyncio.client import ClientConnection

from ..server import wire
from ..server.codec import codec_for
from .dial import dial, stream_url
from .errors import ConnectionLost, RemoteError, StreamError
from .source import CHUNK_SAMPLES

__all__ = ["LoadLine", "Piece", "cut", "open_line"]

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
