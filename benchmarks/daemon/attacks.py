"""What those try who are not welcome, one by one: each tells whether it was refused as it must be."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.error
import urllib.request
from argparse import Namespace

from rig import Daemon
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import JsonCodec

KEY, EXPIRED = "the-key-of-anna-is-long", "the-key-of-yesterday-is-long"
_CODEC = JsonCodec()
_HEAD = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Authorization: Bearer " + KEY.encode() + b"\r\n\r\n"
)


class Abuse:
    """One kind after another against one daemon."""

    def __init__(self, daemon: Daemon, args: Namespace) -> None:
        self._daemon = daemon
        self._args = args
        self._url = f"ws://127.0.0.1:{daemon.port}{wire.STREAM_PATH}"
        self._http = f"http://127.0.0.1:{daemon.port}"

    @property
    def pid(self) -> int:
        return self._daemon.pid

    # Those who hold a connection open. Each returns whether it was refused as it must be.

    async def slow_header(self) -> bool:
        """Header bytes, one after another, without end."""
        return b"" == await self._drip(b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-A: " + b"a" * 10_000)

    async def slow_second_header(self) -> bool:
        """A good request first, and then one that never ends."""
        first = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        rest = b"GET / HTTP/1.1\r\nX-A: " + b"a" * 10_000
        return (await self._drip(first, rest, answer=b"}")).endswith(b"}")

    async def slow_start(self) -> bool:
        """A good handshake, then the frame of ``start`` byte by byte."""
        start = str(_CODEC.encode(wire.Start(prompt="x" * 1_000))).encode()
        frame = b"\x81\xfe" + len(start).to_bytes(2, "big") + bytes(4) + start
        return b"idle_timeout" in await self._drip(_HEAD, frame, answer=b"\r\n\r\n")

    async def no_start(self) -> bool:
        """A good handshake, then nothing."""
        async with self._dial() as ws:
            return await _closing(ws) == (1008, "idle_timeout")

    async def _drip(self, first: bytes, rest: bytes, answer: bytes = b"") -> bytes:
        """Send ``first``, and after ``answer`` ``rest``, byte by byte -> what came until it was closed."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._daemon.port)
        writer.write(first)
        if answer:
            await reader.readuntil(answer)

        async def drip() -> None:
            for at in range(len(rest)):
                writer.write(rest[at : at + 1])
                await writer.drain()
                await asyncio.sleep(self._args.patience / 10)

        dripping = asyncio.create_task(drip())
        received = b""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(self._args.patience * 5 + 10):
                while piece := await reader.read(4096):
                    received += piece
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
        writer.transport.abort()
        return received

    # Those who send what nobody should

    async def huge_header(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._daemon.port)
        answer = b""
        with contextlib.suppress(OSError):
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 300_000 + b"\r\n\r\n")
            await writer.drain()
            answer = await asyncio.wait_for(reader.read(100), 20)
        writer.transport.abort()
        return answer == b"" or answer.startswith(b"HTTP/1.1 400")

    async def no_http(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._daemon.port)
        answer = b""
        with contextlib.suppress(OSError):
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500))
            answer = await asyncio.wait_for(reader.read(100), 20)
        writer.transport.abort()
        return answer == b"" or answer.startswith(b"HTTP/1.1 400")

    # Those who show the wrong thing

    async def wrong_key(self) -> bool:
        return await self._status(KEY[:-1] + "x") == 401

    async def expired_key(self) -> bool:
        return await self._status(EXPIRED) == 401

    async def _status(self, key: str) -> int:
        try:
            async with self._dial(key):
                return 101
        except InvalidStatus as error:
            body = error.response.body or b""
            return 0 if key.encode() in body else error.response.status_code

    async def wrong_token(self, session: str, token: str) -> bool:
        """A good key, and the session of somebody else: to go on with, to read, to watch, to delete."""
        async with self._dial() as ws:
            await ws.send(_CODEC.encode(wire.Resume(session=session, token=token)))
            resumed = await _closing(ws) != (1008, "unknown_session")
        paths = (f"{session}.txt?token={token}", f"{session}/watch?key={token}", session)
        answers = [
            await asyncio.to_thread(self._get, f"/v1/sessions/{path}", path == session)
            for path in paths
        ]
        return not resumed and answers == [404, 404, 404]

    def _get(self, path: str, delete: bool = False) -> int:
        method = "DELETE" if delete else "GET"
        request = urllib.request.Request(self._http + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def _dial(self, key: str = KEY) -> raw_connect:
        headers = {"Authorization": f"Bearer {key}"}
        return raw_connect(self._url, additional_headers=headers, proxy=None, compression=None)

    async def session(self) -> tuple[str, str]:
        """Open a stream that can be resumed, and leave it -> its id and token."""
        async with self._dial() as ws:
            await ws.send(_CODEC.encode(wire.Start(resume=True)))
            ready = _CODEC.decode_server(await ws.recv())
            assert isinstance(ready, wire.Ready)
            return ready.session, ready.token

    def counted(self) -> dict[str, int]:
        """Refusals and errors in ``/metrics``."""
        request = urllib.request.Request(
            self._http + "/metrics", headers={"Authorization": f"Bearer {KEY}"}
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        counts = {}
        for line in lines:
            name, _, value = line.rpartition(" ")
            if name.startswith(("whisper_stream_refusals_total{", "whisper_stream_errors_total{")):
                counts[name.split('"')[1]] = round(float(value))
        return counts


async def _closing(ws: raw_connect) -> tuple[int | None, str | None]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await ws.recv()
    return ws.close_code, ws.close_reason
