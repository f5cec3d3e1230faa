"""One stream to a server, for asyncio: PCM goes in, typed messages come out.

::

    async with connect("ws://localhost:9090", Start(language="en")) as stream:
        await stream.send_audio(pcm)
        await stream.eos()
        async for message in stream:
            ...

When the connection drops, even before the server has sent ``ready``, the stream goes on with a new one:
what the server does not hold yet is kept and sent again, and the messages of the meantime arrive, so that no
word is missing or comes twice.
A server that has forgotten the stream (it was restarted) gets a new one from the last closed segment on.

An error that tells why no connection could be opened says so in one sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from socket import SO_SNDBUF, SOL_SOCKET
from urllib.parse import urlsplit, urlunsplit

import msgspec
import websockets.exceptions as ws_errors
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as ws_connect
from websockets.typing import Subprotocol

from ...server.protocol import messages as wire
from ...server.protocol.codec import codec_for
from ...server.protocol.errors import ProtocolError, UnknownMessage
from ..errors import ConnectError, ConnectionLost, RemoteError, StreamError, UsageError
from .session import ClientSession

__all__ = ["RECONNECT_SECONDS", "ReconnectingStream", "connect", "dial", "stream_url"]

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


async def dial(url: str, subprotocol: str, key: str | None = None) -> ClientConnection:
    """Open a websocket.

    Args:
        url: a complete address; see ``stream_url``.
        subprotocol: the server has to speak it.
        key: the API key, where the server wants one.

    Raises:
        UsageError: ``key`` has characters that no header can carry.
        ConnectError: no connection was made, or the server does not speak ``subprotocol``.
    """
    if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key != ""):
        raise UsageError("the key may hold printable ASCII characters only")
    socket = await _open(url, subprotocol, key)
    # Little audio in the kernel: eos and pings do not wait behind minutes of it.
    tcp = socket.transport.get_extra_info("socket")
    tcp.setsockopt(SOL_SOCKET, SO_SNDBUF, _SEND_BUFFER)
    if socket.subprotocol != subprotocol:
        await socket.close()
        raise ConnectError(url, f"the server does not speak {subprotocol}; check the address")
    return socket


async def _open(url: str, subprotocol: str, key: str | None) -> ClientConnection:
    try:
        return await ws_connect(
            url,
            subprotocols=[Subprotocol(subprotocol)],
            additional_headers={} if key is None else {"Authorization": f"Bearer {key}"},
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
        status = error.response.status_code
        raise ConnectError(url, _status_reason(status, key), status) from None
    except ws_errors.NegotiationError:
        reason = f"the server does not speak {subprotocol}; check the address"
        raise ConnectError(url, reason) from None
    except ssl.SSLCertVerificationError as error:
        raise ConnectError(url, _certificate_reason(error)) from None
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
        reason = (
            "what answered is no websocket server; check the address, and if it is a wss:// one"
        )
        raise ConnectError(url, reason) from None


def _status_reason(status: int, key: str | None) -> str:
    match status:
        case 401 if key is None:
            return "the server wants a key (HTTP 401); give one with --key, or key= in Python"
        case 401:
            return "the server does not know this key (HTTP 401); it may have expired"
        case 403:
            return "the server refused access (HTTP 403); check the address's path"
        case 429 | 503:
            return f"the server takes no more streams now (HTTP {status}); try again later"
        case _:
            return f"is no whisper-stream address (HTTP {status}); check host, port and path"


def _certificate_reason(error: ssl.SSLCertVerificationError) -> str:
    """Return the reason why a certificate was refused; the numbers are OpenSSL's X509_V_ERR_…"""
    match error.verify_code:
        case 10:
            return "the server's certificate has expired; the server needs a new one"
        case 62 | 64:
            text = error.verify_message.rstrip(".").replace(", certificate", ": the certificate")
            return f"{text}; use a name or address that is in it"
        case _:
            return (
                f"the server's certificate is not trusted ({error.verify_message}); if it is your own, "
                "set the variable SSL_CERT_FILE to the path of it, which `serve --self-signed` tells"
            )


def _os_reason(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error.strerror or error).lower()


RECONNECT_SECONDS = 30.0
_BACKLOG_BYTES = 64 * 1024 * 1024  # of audio kept while there is no connection; then sending waits
_INBOX = 64  # messages received and not taken yet; then the server waits
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0  # seconds between attempts to reconnect
# Closed in a way that does not mean the end of the stream.
_PASSING = (1001, 1012, 1013)


@asynccontextmanager
async def connect(
    url: str,
    start: wire.Start,
    *,
    subprotocol: str = wire.MSGPACK_SUBPROTOCOL,
    reconnect_seconds: float = RECONNECT_SECONDS,
    key: str | None = None,
    on_lost: Callable[[], None] | None = None,
) -> AsyncIterator[ReconnectingStream]:
    """Open a stream; leaving the context closes it.

    Args:
        url: ``ws://host:port``, with or without a path.
        start: the options of the stream.
        subprotocol: the encoding of messages, one of ``messages.SUBPROTOCOLS``.
        reconnect_seconds: how long to try when the connection drops; 0: not at all.
        key: the API key, where the server wants one.
        on_lost: called when the connection is lost, before the first attempt to make it again.

    Raises:
        UsageError: ``url`` is no websocket address, or ``key`` no key.
        ConnectError: no connection was made, or what answered is no whisper-stream server.
    """
    url = stream_url(url)
    start = msgspec.structs.replace(start, resume=reconnect_seconds > 0)
    socket = await dial(url, subprotocol, key)
    stream = ReconnectingStream(socket, url, subprotocol, start, reconnect_seconds, key, on_lost)
    try:
        await stream.open()
        yield stream
    finally:
        await stream.close()


class ReconnectingStream:
    """A stream that goes on when its connection drops. One task may send while another iterates.

    The iteration yields every message, ends after ``done``, and raises :class:`RemoteError` after a
    fatal ``error``, :class:`ConnectionLost` when the connection ends before either and the stream
    cannot be resumed, and :class:`StreamError` for what is no message at all. A ``resumed`` message
    says that the connection was lost and made again.
    Messages of types that this version does not know are passed over.
    """

    def __init__(
        self,
        socket: ClientConnection,
        url: str,
        subprotocol: str,
        start: wire.Start,
        reconnect_seconds: float,
        key: str | None,
        on_lost: Callable[[], None] | None,
    ) -> None:
        self._on_lost = on_lost
        self._socket = socket
        self._key = key
        self._url = url
        self._codec = codec_for(subprotocol)
        self._reconnect_seconds = reconnect_seconds
        self._session = ClientSession(start)
        self._backlog = self._session.backlog
        self._inbox: asyncio.Queue[wire.ServerMessage | None] = asyncio.Queue(_INBOX)
        self._connected = True
        # Set for the sender when it may go on, and for those who wait for it when it has.
        self._work = asyncio.Event()
        self._progress = asyncio.Event()
        # What ended the stream, for those who receive and for those who send.
        self._error: StreamError | None = None
        self._fault: ConnectionLost | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Send ``start``, and begin to send and receive."""
        with contextlib.suppress(ws_errors.ConnectionClosed):  # the receiver will say so
            await self._socket.send(self._codec.encode(self._session.greeting()))
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._send_all())]

    async def close(self) -> None:
        """Close the connection at once, whatever is still on its way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close()

    async def send(self, message: wire.ClientMessage) -> None:
        """Send one message; waits while the server does not keep up.

        Without a connection it is kept, and waits only for room.

        Raises:
            ConnectionLost: the connection has ended, and the stream with it.
        """
        self._session.add(message)
        self._work.set()
        while self._fault is None and not self._backlog.all_sent:
            if not self._connected and self._backlog.size < _BACKLOG_BYTES:
                return
            self._progress.clear()
            await self._progress.wait()
        if self._fault is not None:
            raise self._fault

    async def send_audio(self, pcm: bytes) -> None:
        """Send PCM as ``start`` declared it; see :meth:`send`."""
        await self.send(wire.Audio(data=pcm))

    async def flush(self, flush_id: str = "") -> None:
        """Ask for everything sent so far to be committed; ``flushed`` with this id answers."""
        await self.send(wire.Flush(id=flush_id))

    async def eos(self) -> None:
        """Say that no more audio comes. The server commits the rest and sends ``done``."""
        await self.send(wire.Eos())

    async def __aiter__(self) -> AsyncIterator[wire.ServerMessage]:
        while True:
            ended = self._error is not None and self._inbox.empty()
            message = None if ended else await self._inbox.get()
            if message is None:
                assert self._error is not None
                raise self._error
            yield message
            match message:
                case wire.Done():
                    return
                case wire.Error(fatal=True):
                    raise RemoteError(message.code, message.message, message.field)

    async def _send_all(self) -> None:
        """Send what the backlog holds, and go on after each reconnection."""
        while self._fault is None:
            self._work.clear()
            if self._connected:
                with contextlib.suppress(ws_errors.ConnectionClosed):  # the receiver reconnects
                    await self._send_some(self._socket)
            await self._work.wait()

    async def _send_some(self, socket: ClientConnection) -> None:
        while self._connected and socket is self._socket and not self._backlog.all_sent:
            await self._acknowledge(socket)
            await socket.send(self._codec.encode(self._backlog.next()))
            if socket is not self._socket or not self._connected:
                return  # the backlog was, or will be, rewound
            self._backlog.advance()
            self._progress.set()
        await self._acknowledge(socket)

    async def _acknowledge(self, socket: ClientConnection) -> None:
        """Acknowledge what has arrived, now and then."""
        due = self._session.acknowledgement(asyncio.get_running_loop().time())
        if due is not None:
            await socket.send(self._codec.encode(due))

    async def _receive(self) -> None:
        """Receive until the stream has ended, over as many connections as it takes."""
        try:
            while True:
                try:
                    frame = await self._socket.recv()
                except ws_errors.ConnectionClosed as error:
                    await self._recover(error)
                    continue
                message = self._decode(frame)
                if message is None:
                    continue
                self._session.receive(message)
                self._work.set()  # there may be something to acknowledge
                if self._session.stops_early(message):
                    continue
                for event in self._session.merge(message):
                    await self._inbox.put(event)
                if isinstance(message, wire.Done) or _is_fatal(message):
                    self._end(ConnectionLost("the stream has ended"))
                    return
        except StreamError as error:
            self._end(error)
            if not self._inbox.full():  # wakes who waits; nobody does while it is full
                self._inbox.put_nowait(None)

    def _end(self, fault: StreamError) -> None:
        """End the stream with ``fault``: senders and receivers get it from now on."""
        self._error = fault
        self._fault = fault if isinstance(fault, ConnectionLost) else ConnectionLost(str(fault))
        self._work.set()
        self._progress.set()

    def _decode(self, frame: str | bytes) -> wire.ServerMessage | None:
        try:
            return self._codec.decode_server(frame)
        except UnknownMessage:
            return None
        except ProtocolError as error:
            raise StreamError(f"the server broke the protocol: {error}") from None

    async def _recover(self, lost: ws_errors.ConnectionClosed) -> None:
        """Connect anew and resume; raises ConnectionLost where that cannot be."""
        passing = lost.rcvd is None or lost.rcvd.code in _PASSING
        # Before ``ready`` there is nothing to resume: the stream is opened once more.
        again = self._session.resumable if self._session.opened else self._reconnect_seconds > 0
        if not (again and passing):
            raise _connection_lost(lost) from None
        self._connected = False
        self._progress.set()
        if self._on_lost is not None:
            self._on_lost()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._reconnect_seconds
        pause = _FIRST_PAUSE
        while True:
            with contextlib.suppress(ConnectError, ws_errors.ConnectionClosed):
                if await self._resume():
                    return
            if loop.time() + pause > deadline:
                raise _connection_lost(lost) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _resume(self) -> bool:
        """Try to go on with a new connection; return whether it does.

        Raises:
            ConnectionLost: no connection ever will.
        """
        socket = await dial(self._url, self._codec.subprotocol, self._key)
        try:
            await socket.send(self._codec.encode(self._session.greeting()))
            answer = self._decode(await socket.recv())
            while answer is None or isinstance(answer, wire.Warning):
                answer = self._decode(await socket.recv())
            event = self._session.accept(answer)
        except BaseException:
            await socket.close()
            raise
        if event is None:
            await socket.close()
            return False
        self._socket, self._connected = socket, True
        self._work.set()
        await self._inbox.put(event)
        return True


def _is_fatal(message: wire.ServerMessage) -> bool:
    return isinstance(message, wire.Error) and message.fatal


def _connection_lost(error: ws_errors.ConnectionClosed) -> ConnectionLost:
    if error.rcvd is None:
        return ConnectionLost("the connection to the server was lost before the stream was done")
    why = f"code {error.rcvd.code}" + (f", {error.rcvd.reason}" if error.rcvd.reason else "")
    text = f"the server closed the connection before the stream was done ({why})"
    return ConnectionLost(text, error.rcvd.code, error.rcvd.reason)
