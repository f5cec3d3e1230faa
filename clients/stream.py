"""One stream to a server, for asyncio: PCM goes in, typed messages come out.

::

    async with connect("ws://localhost:9090", Start(language="en")) as stream:
        await stream.send_audio(pcm)
        await stream.eos()
        async for message in stream:
            ...
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import SO_SNDBUF, SOL_SOCKET
from urllib.parse import urlsplit, urlunsplit

import websockets.exceptions as ws_errors
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as ws_connect
from websockets.typing import Subprotocol

from ..server import wire
from ..server.codec import codec_for
from ..server.errors import ProtocolError, UnknownMessage
from .errors import ConnectError, ConnectionLost, RemoteError, StreamError, UsageError

__all__ = ["StreamConnection", "connect", "stream_url"]

_AUDIO_PIECE = 256 * 1024  # bytes in a frame; proxies may take less than the server does
_SEND_BUFFER = 64 * 1024  # bytes
_OPEN_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def stream_url(url: str) -> str:
    """Complete a server's address: without a path, that of the native protocol is added.

    Raises:
        UsageError: it is no ``ws://`` or ``wss://`` address with a host.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("ws", "wss") and bool(parts.hostname)
        valid = valid and (parts.port is None or parts.port > 0) and not parts.fragment
    except ValueError:  # a port that is no number, an unclosed bracket
        valid = False
    if not valid:
        raise UsageError(f"server address {url!r}: write it like ws://host:{wire.DEFAULT_PORT}")
    return urlunsplit(parts._replace(path=wire.STREAM_PATH)) if parts.path in ("", "/") else url


@asynccontextmanager
async def connect(
    url: str, start: wire.Start, *, subprotocol: str = wire.MSGPACK_SUBPROTOCOL
) -> AsyncIterator[StreamConnection]:
    """Open a stream with ``start``; leaving the context closes it.

    Raises:
        UsageError: ``url`` is no websocket address.
        ConnectError: no connection was made, or what answered is no whisper-stream server.
    """
    url = stream_url(url)
    socket = await _open(url, subprotocol)
    try:
        # Little audio in the kernel: eos and pings do not wait behind minutes of it.
        tcp = socket.transport.get_extra_info("socket")
        tcp.setsockopt(SOL_SOCKET, SO_SNDBUF, _SEND_BUFFER)
        if socket.subprotocol != subprotocol:
            raise ConnectError(url, f"the server does not speak {subprotocol}; check the address")
        stream = StreamConnection(socket, subprotocol)
        await stream.send(start)
        yield stream
    finally:
        await socket.close()


async def _open(url: str, subprotocol: str) -> ClientConnection:
    try:
        return await ws_connect(
            url,
            subprotocols=[Subprotocol(subprotocol)],
            compression=None,  # PCM hardly shrinks, and it would cost latency
            max_size=wire.MAX_FRAME_BYTES,
            open_timeout=_OPEN_SECONDS,
            close_timeout=2,
            # A busy server may leave our frames, and the pings among them, unread for long: that
            # is backpressure, not a lost connection.
            ping_timeout=None,
            proxy=None if urlsplit(url).hostname in _LOOPBACK else True,
        )
    except ws_errors.InvalidStatus as error:
        raise ConnectError(url, _status_reason(error.response.status_code)) from None
    except ws_errors.NegotiationError:
        reason = f"the server does not speak {subprotocol}; check the address"
        raise ConnectError(url, reason) from None
    except ssl.SSLError as error:
        reason = f"no secure connection ({error.reason or error}); is it a ws:// server?"
        raise ConnectError(url, reason.lower()) from None
    except TimeoutError:
        reason = f"no answer within {_OPEN_SECONDS:.0f} s; check the address and the server"
        raise ConnectError(url, reason) from None
    except OSError as error:
        reason = f"cannot be reached ({_os_reason(error)}); start one with `whisper-stream serve`"
        raise ConnectError(url, reason) from None
    except (ws_errors.WebSocketException, EOFError):
        reason = "what answered is no websocket server; check the address"
        raise ConnectError(url, reason) from None


class StreamConnection:
    """An open stream. Iterate it for the server's messages while sending from another task.

    The iteration yields every message, ends after ``done``, and raises :class:`RemoteError` after a
    fatal ``error``, :class:`ConnectionLost` when the connection ends before either, and
    :class:`StreamError` for what is no message at all.
    Messages of types that this version does not know are passed over.
    """

    def __init__(self, socket: ClientConnection, subprotocol: str) -> None:
        self._socket = socket
        self._codec = codec_for(subprotocol)

    async def send(self, message: wire.ClientMessage) -> None:
        """Send one message; waits while the server does not keep up.

        Raises:
            ConnectionLost: the connection has ended.
        """
        try:
            await self._socket.send(self._codec.encode(message))
        except ws_errors.ConnectionClosed as error:
            raise _lost(error) from None

    async def send_audio(self, pcm: bytes) -> None:
        """Send PCM as ``start`` declared it; waits while the server does not keep up.

        Raises:
            ConnectionLost: the connection has ended.
        """
        for at in range(0, len(pcm), _AUDIO_PIECE):
            await self.send(wire.Audio(data=pcm[at : at + _AUDIO_PIECE]))

    async def flush(self, flush_id: str = "") -> None:
        """Ask for everything sent so far to be committed; ``flushed`` with this id answers."""
        await self.send(wire.Flush(id=flush_id))

    async def eos(self) -> None:
        """Say that no more audio comes. The server commits the rest and sends ``done``."""
        await self.send(wire.Eos())

    async def __aiter__(self) -> AsyncIterator[wire.ServerMessage]:
        while True:
            try:
                frame = await self._socket.recv()
            except ws_errors.ConnectionClosed as error:
                raise _lost(error) from None
            try:
                message = self._codec.decode_server(frame)
            except UnknownMessage:
                continue
            except ProtocolError as error:
                raise StreamError(f"the server broke the protocol: {error}") from None
            yield message
            match message:
                case wire.Done():
                    return
                case wire.Error(fatal=True):
                    raise RemoteError(message.code, message.message, message.field)


def _lost(error: ws_errors.ConnectionClosed) -> ConnectionLost:
    if error.rcvd is None:
        return ConnectionLost("the connection to the server was lost before the stream was done")
    why = f"code {error.rcvd.code}" + (f", {error.rcvd.reason}" if error.rcvd.reason else "")
    return ConnectionLost(f"the server closed the connection before the stream was done ({why})")


def _status_reason(status: int) -> str:
    match status:
        case 401 | 403:
            return (
                f"the server refused access (HTTP {status}); check the address's path, and your key"
            )
        case 429 | 503:
            return f"the server takes no more streams now (HTTP {status}); try again later"
        case _:
            return f"is no whisper-stream address (HTTP {status}); check host, port and path"


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error.strerror or error).lower()
