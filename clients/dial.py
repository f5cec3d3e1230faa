"""Opens websockets to a server, and explains in one sentence why one cannot be opened."""

from __future__ import annotations

import ssl
from socket import SO_SNDBUF, SOL_SOCKET
from urllib.parse import urlsplit, urlunsplit

import websockets.exceptions as ws_errors
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as ws_connect
from websockets.typing import Subprotocol

from ..server import wire
from .errors import ConnectError, UsageError

__all__ = ["dial", "stream_url"]

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
    """Return an open websocket; raises ConnectError, and UsageError for what can be no key."""
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
    """Numbers are OpenSSL's, X509_V_ERR_…"""
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
