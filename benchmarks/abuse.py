"""Those who are not welcome: slow, huge, without a key, with another's session. All are refused and counted.

    python benchmarks/abuse.py                             # 1000 wrong keys, 200 slow connections
    python benchmarks/abuse.py --wrong 200 --slow 20 --patience 0.5

A daemon with keys meets them one kind after another, and a healthy stream speaks beside them, again and
again. Prints one JSON object last: of each kind how many were tried, how many were refused as they must be,
and how many the daemon counted in ``/metrics``; what its memory, descriptors and log have grown by; and
whether any secret is in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from rig import SAMPLE_RATE, Daemon, converse, parser, report, running
from websockets.asyncio.client import connect as raw_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from whisper_stream.server import wire
from whisper_stream.server.codec import JsonCodec

KEY, EXPIRED = "the-key-of-anna-is-long", "the-key-of-yesterday-is-long"
MOST_MEMORY = 24 * 1024 * 1024  # bytes grown
MOST_LINES = 60  # logged
AT_ONCE = 40
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
                counts[name.split('"')[1]] = int(value)
        return counts


async def _closing(ws: raw_connect) -> tuple[int | None, str | None]:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await ws.recv()
    return ws.close_code, ws.close_reason


async def many(count: int, one: Callable[[], Awaitable[bool]]) -> int:
    """How many of ``count`` were refused as they must be."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded() -> bool:
        async with gate:
            return await one()

    return sum(await asyncio.gather(*(guarded() for _ in range(count))))


def used(pid: int) -> tuple[int, int]:
    """Resident bytes and open descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def attack(abuse: Abuse, args: Namespace) -> dict[str, dict[str, object]]:
    """Every kind, once -> tried, refused, and what the daemon has counted of it."""
    session, token = await abuse.session()
    kinds: dict[str, tuple[int, Callable[[], Awaitable[bool]], str]] = {
        "slow_header": (args.slow, abuse.slow_header, "slow_request"),
        "slow_second_header": (args.slow, abuse.slow_second_header, "slow_request"),
        "slow_start": (args.slow, abuse.slow_start, "idle_timeout"),
        "no_start": (args.slow, abuse.no_start, "idle_timeout"),
        "huge_header": (args.slow, abuse.huge_header, "bad_request"),
        "no_http": (args.slow, abuse.no_http, "bad_request"),
        "wrong_key": (args.wrong, abuse.wrong_key, "key"),
        "expired_key": (args.slow, abuse.expired_key, "key"),
        "wrong_token": (args.slow, lambda: abuse.wrong_token(session, KEY), "session"),
        "expired_token": (1, lambda: abuse.wrong_token(session, token), "session"),
    }
    figures: dict[str, dict[str, object]] = {}
    for name, (count, one, reason) in kinds.items():
        if (
            name == "expired_token"
        ):  # nobody has resumed it: it is over, and its transcript forgotten
            await asyncio.sleep(3.0)
        before, memory = abuse.counted(), used(abuse.pid)[0]
        began = time.monotonic()
        refused = await many(count, one)
        seconds = time.monotonic() - began
        grown = abuse.counted().get(reason, 0) - before.get(reason, 0)
        figures[name] = {"tried": count, "refused": refused, "counted": grown}
        figures[name]["seconds"] = round(seconds, 2)
        figures[name]["memory_kib"] = (used(abuse.pid)[0] - memory) // 1024
    return figures


async def beside(url: str, pcm: bytes, done: asyncio.Event) -> tuple[int, bool]:
    """Healthy streams, one after another -> how many, and whether all said the same."""
    expected, count, same = await converse(url, pcm, 0), 0, True
    while not done.is_set():
        same = same and await converse(url, pcm, 0) == expected
        count += 1
        await asyncio.sleep(0.05)
    return count, same and len(expected) > 0


def measure(args: Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        keys, log = Path(folder, "keys"), Path(folder, "log")
        keys.write_text(f"anna:{KEY}\nold:{EXPIRED} expires=2020-01-01\n")
        flags = ["--api-keys", str(keys), "--handshake-timeout", str(args.patience)]
        flags += ["--resume-seconds", "2", "--retain-seconds", "0.5", "--log-level", "info"]
        figures = asyncio.run(meet(args, flags, log))
        logged = log.read_text()
    lines = [line for line in logged.splitlines() if "stream=" not in line or "stream=-" in line]
    secrets = any(secret in logged for secret in (KEY[:-1], EXPIRED, "Traceback"))
    figures |= {"log_lines": len(lines), "secrets_or_tracebacks_logged": secrets}
    figures["passed"] = bool(figures["passed"]) and not secrets and len(lines) <= MOST_LINES
    return figures


async def meet(args: Namespace, flags: list[str], log: Path) -> dict[str, object]:
    noise = np.random.default_rng(1).integers(-9_000, 9_000, SAMPLE_RATE * 4)
    pcm = noise.astype("<i2").tobytes()
    async with running("scripted", "--max-load", "0", *flags, log=log) as daemon:
        abuse, done = Abuse(daemon, args), asyncio.Event()
        await many(100, abuse.wrong_key)  # what is imported and allocated once is there now
        url = f"ws://127.0.0.1:{daemon.port}?key={KEY}"
        await converse(url, pcm, 0)
        memory, descriptors = used(daemon.pid)
        healthy = asyncio.create_task(beside(url, pcm, done))
        figures = await attack(abuse, args)
        done.set()
        streams, same = await healthy
        await asyncio.sleep(0.5)
        more_memory, more_descriptors = used(daemon.pid)
        alive = daemon.alive
    refused = all(f["tried"] == f["refused"] for f in figures.values())
    counted = all(int(str(f["counted"])) >= int(str(f["tried"])) for f in figures.values())
    grown = more_memory - memory
    held = grown < MOST_MEMORY and more_descriptors <= descriptors
    return {
        "benchmark": "abuse",
        **figures,
        "memory_grown_bytes": grown,
        "descriptors_grown": more_descriptors - descriptors,
        "healthy_streams": streams,
        "healthy_streams_unchanged": same,
        "passed": alive and same and refused and counted and held,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--wrong", type=int, default=1000, help="wrong keys")
    options.add_argument("--slow", type=int, default=200, help="connections of every other kind")
    options.add_argument("--patience", type=float, default=10.0, help="--handshake-timeout")
    return report(measure(options.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
