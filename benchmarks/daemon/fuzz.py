"""Hostile input: codecs, the protocol, containers, HTTP and websockets; a healthy stream runs beside.

    python benchmarks/daemon/fuzz.py                        # 200,000 inputs
    python benchmarks/daemon/fuzz.py --inputs 2000
    python benchmarks/daemon/fuzz.py --guided 100000        # as many more by atheris: extra [fuzz]

Most inputs are mutations of good ones: those get furthest. Codecs, protocol and containers are fed in
this process, where an exception that is no answer counts as a crash; sockets are fed to a daemon, whose
healthy stream must say, word for word, what it says undisturbed. Prints one JSON object last.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable

import av
import fuzz_guided
import msgpack
import numpy as np
from rig import SAMPLE_RATE, Daemon, converse, parser, report, running
from whisper_stream.server.protocol.codec import Codec, JsonCodec, MsgpackCodec
from whisper_stream.server.protocol.errors import ProtocolError
from whisper_stream.server.protocol.messages import Start
from whisper_stream.server.protocol.state import ServerProtocol
from whisper_stream.streamer.audio.container import ContainerIngest

SLOW = 2.0  # seconds for one input: a hang
# How many of a hundred inputs go where.
SHARES = {"codec": 60, "protocol": 36, "container": 1, "socket": 3}

MESSAGES: list[dict[str, object]] = [
    {"type": "start", "encoding": "s16le", "sample_rate": 16_000, "channels": 1, "language": "en"},
    {"type": "start", "encoding": "webm", "prompt": "x" * 100, "endpoint_silence": 0.5},
    {"type": "resume", "session": "9f2c41d07be8a653", "token": "secret", "seq": 7},
    {"type": "flush", "id": "f1"},
    {"type": "config", "language": None, "prompt": "Anna"},
    {"type": "ack", "seq": 9},
    {"type": "ping", "id": "p"},
    {"type": "audio", "data": b"\0\1" * 40},
    {"type": "eos"},
]
_ODD = [
    None,
    True,
    -1,
    2**63,
    1e308,
    float("nan"),
    "",
    "\ud7ff",
    "x" * 5000,
    [],
    {},
    [[[]]],
    b"\xff",
]
_HEAD = (
    b"GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class Mutator:
    """Good input, made bad in a way that the seed decides."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def message(self) -> dict[str, object]:
        value = dict(self.chance.choice(MESSAGES))
        for _ in range(self.chance.randrange(3)):
            name = self.chance.choice([*value, "type", "seq", "data", "", "__proto__"])
            if self.chance.random() < 0.2:
                value.pop(name, None)
            else:
                value[name] = self.chance.choice([*_ODD, dict(value)])
        return value

    def damaged(self, data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(self.chance.randrange(5)):
            at = self.chance.randrange(len(changed) + 1)
            match self.chance.randrange(4):
                case 0:
                    changed[at : at + 1] = self.chance.randbytes(1)
                case 1:
                    changed[at:at] = self.chance.randbytes(self.chance.randrange(1, 20))
                case 2:
                    del changed[at : at + self.chance.randrange(1, 30)]
                case 3:
                    changed[at:at] = changed[: self.chance.randrange(1, 200)] * 3
        return bytes(changed)

    def frame(self) -> str | bytes:
        if self.chance.random() < 0.2:
            return self.chance.randbytes(self.chance.randrange(200))
        value = self.message()
        if self.chance.random() < 0.5:
            packed: bytes = msgpack.packb(value, default=str, unicode_errors="surrogatepass")
            return self.damaged(packed)
        text = json.dumps(value, default=str)
        return self.damaged(text.encode()).decode("utf-8", "replace")


def try_codec(mutate: Mutator) -> None:
    frame = mutate.frame()
    codec: Codec
    for codec in (JsonCodec(), MsgpackCodec()):
        for decode in (codec.decode_client, codec.decode_server):
            with contextlib.suppress(ProtocolError):
                decode(frame)


def try_protocol(mutate: Mutator) -> None:
    codec = mutate.chance.choice([JsonCodec(), MsgpackCodec()])
    protocol = ServerProtocol(codec, ("en", "de"), endpoint_silence=0.6)
    if mutate.chance.random() < 0.7:
        protocol.receive(codec.encode(Start()))
    for _ in range(mutate.chance.randrange(1, 6)):
        protocol.receive(mutate.frame())
    protocol.stop()


def good_files(seconds: float = 2.0) -> dict[str, bytes]:
    """A tone in every container."""
    tone = (np.sin(np.arange(round(SAMPLE_RATE * seconds)) / 20) * 9000).astype("<i2")[None]
    files = {}
    for kind, muxer, codec, rate in (
        ("webm", "webm", "libopus", 48_000),
        ("ogg", "ogg", "libopus", 48_000),
        ("mp3", "mp3", "libmp3lame", 44_100),
        ("wav", "wav", "pcm_s16le", 16_000),
        ("flac", "flac", "flac", 16_000),
        ("mp4", "mp4", "aac", 44_100),
        ("aac", "adts", "aac", 44_100),
    ):
        out = io.BytesIO()
        options = {"movflags": "frag_keyframe+empty_moov"} if kind == "mp4" else {}
        with av.open(out, "w", format=muxer, options=options) as container:
            stream = container.add_stream(codec, rate=rate)
            frame = av.AudioFrame.from_ndarray(tone, format="s16", layout="mono")
            frame.sample_rate = SAMPLE_RATE
            for packet in (*stream.encode(frame), *stream.encode(None)):
                container.mux(packet)
        files[kind] = out.getvalue()
    return files


def try_container(mutate: Mutator, files: dict[str, bytes]) -> None:
    kind = mutate.chance.choice(sorted(files))
    data = mutate.damaged(files[mutate.chance.choice([kind, kind, kind, "wav"])])
    read_container(kind, data, mutate.chance.choice([500, 5_000, 16_384]))


def read_container(kind: str, data: bytes, step: int) -> None:
    """Decode ``data`` as it would come in, ``step`` bytes at a time."""
    reader = ContainerIngest(kind)
    for at in range(0, len(data), step):
        reader.push(data[at : at + step])
        for _ in range(20):
            if not reader.has_more:
                break
            reader.more()
    reader.finish()
    reader.close()


async def try_socket(mutate: Mutator, daemon: Daemon) -> None:
    """A raw connection: a handshake, good or damaged, then frames, good or damaged."""
    head = _HEAD if mutate.chance.random() < 0.7 else mutate.damaged(_HEAD)
    frames = b"".join(_masked(mutate) for _ in range(mutate.chance.randrange(6)))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        writer.write(head + frames)
        await writer.drain()
        if mutate.chance.random() < 0.5:
            await asyncio.wait_for(reader.read(4096), 0.05)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        pass  # refused, or left waiting: both are answers


def _masked(mutate: Mutator) -> bytes:
    frame = mutate.frame()
    body = frame.encode("utf-8", "replace") if isinstance(frame, str) else frame
    body = body[:60_000]
    first = 0x81 if isinstance(frame, str) else 0x82
    if mutate.chance.random() < 0.2:
        first = mutate.chance.randrange(256)
    short = len(body) < 126
    size = bytes([0x80 | len(body)]) if short else b"\xfe" + len(body).to_bytes(2, "big")
    return bytes([first]) + size + bytes(4) + body


class Fuzz:
    def __init__(self, args: Namespace) -> None:
        self._args = args
        self.done: Counter[str] = Counter()
        self.crashes: list[str] = []
        self.slowest = 0.0

    def local(self, kind: str, work: Callable[[Mutator], None], count: int) -> None:
        for number in range(count):
            mutate = Mutator(number + self._args.seed * 1_000_003)
            began = time.monotonic()
            try:
                work(mutate)
            except Exception as error:  # noqa: BLE001 - this is what is looked for
                self.crashes.append(f"{kind} {number}: {type(error).__name__}: {error}"[:200])
            self.slowest = max(self.slowest, time.monotonic() - began)
            self.done[kind] += 1

    def guided(self, count: int, seed: int) -> bool:
        """Whether atheris could be run; what it finds are crashes as well."""
        if not fuzz_guided.available():
            print("no guided inputs: atheris is not installed; pip install 'whisper-stream[fuzz]'")
            return False
        for target, share in fuzz_guided.SHARES.items():
            tried, crashes = fuzz_guided.run(target, max(1, count * share // 100), seed)
            self.done[f"guided {target}"] += tried
            self.crashes += crashes
        return True

    async def sockets(self, daemon: Daemon, count: int) -> bool:
        """Whether a healthy stream, again and again beside them, always says the same."""
        pcm = (
            np.random.default_rng(1)
            .integers(-9_000, 9_000, SAMPLE_RATE * 8)
            .astype("<i2")
            .tobytes()
        )
        url = f"ws://127.0.0.1:{daemon.port}"
        expected = await converse(url, pcm, 0)
        same = True
        for first in range(0, count, 50):
            batch = [
                try_socket(Mutator(number + 7_000_003 * (self._args.seed + 1)), daemon)
                for number in range(first, min(count, first + 50))
            ]
            healthy, *_ = await asyncio.gather(converse(url, pcm, 0), *batch)
            same = same and healthy == expected
            self.done["socket"] += len(batch)
        return same and daemon.alive and len(expected) > 0


async def measure(args: Namespace) -> dict[str, object]:
    fuzz = Fuzz(args)
    threading.excepthook = lambda what: fuzz.crashes.append(f"thread: {what.exc_value!r}"[:200])
    counts = {kind: max(1, args.inputs * share // 100) for kind, share in SHARES.items()}
    files = good_files()
    fuzz.local("codec", try_codec, counts["codec"])
    fuzz.local("protocol", try_protocol, counts["protocol"])
    fuzz.local("container", lambda mutate: try_container(mutate, files), counts["container"])
    guided = args.guided == 0 or fuzz.guided(args.guided, args.seed)
    async with running("scripted", "--max-load", "0", "--handshake-timeout", "2") as daemon:
        same = await fuzz.sockets(daemon, counts["socket"])
    for crash in fuzz.crashes[:20]:
        print(crash)
    return {
        "benchmark": "fuzz",
        "inputs": sum(fuzz.done.values()),
        "by_kind": dict(fuzz.done),
        "crashes": len(fuzz.crashes),
        "slowest_seconds": round(fuzz.slowest, 3),
        "healthy_stream_unchanged": same,
        "passed": not fuzz.crashes and same and fuzz.slowest < SLOW and guided,
    }


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--inputs", type=int, default=200_000)
    options.add_argument("--guided", type=int, default=0, help="inputs more, by atheris")
    return report(asyncio.run(measure(options.parse_args())))


if __name__ == "__main__":
    sys.exit(main())
