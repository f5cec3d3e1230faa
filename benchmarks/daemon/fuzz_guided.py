"""Hostile input that learns: atheris (libFuzzer) changes inputs by which lines they reach.

    python benchmarks/daemon/fuzz_guided.py codec -runs=50000      # or protocol, handshake, container

Needs the extra [fuzz]. ``fuzz.py --guided`` runs every target, each in a process of its own, as libFuzzer
ends it at the first crash, or at an input that takes longer than ten seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# How many of a hundred inputs go where.
SHARES = {"codec": 45, "protocol": 30, "handshake": 20, "container": 5}
_KEY = "a-key-that-is-long-enough"
_DONE = re.compile(r"Done (\d+) runs")
_FLAGS = ("-timeout=10", "-rss_limit_mb=4096", "-max_len=65536", "-print_final_stats=0")


def available() -> bool:
    return importlib.util.find_spec("atheris") is not None


def run(target: str, count: int, seed: int) -> tuple[int, list[str]]:
    """Run one target in a process of its own -> inputs tried, and what went wrong."""
    command = [sys.executable, __file__, target, f"-runs={count}", f"-seed={seed + 1}", *_FLAGS]
    with tempfile.TemporaryDirectory(prefix="whisper-stream-fuzz-") as folder:
        command.append(f"-artifact_prefix={folder}/")
        done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    found = _DONE.search(done.stderr)
    tried = int(found[1]) if found else 0
    if done.returncode == 0 and found:
        return tried, []
    lines = [line for line in done.stderr.splitlines() if "Error" in line or "==" in line]
    return tried, [f"{target}: {' | '.join(lines[-4:])}"[:400]]


def _codec(fuzz: Any) -> Callable[[bytes], None]:
    def one(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        for codec in (fuzz.JsonCodec(), fuzz.MsgpackCodec()):
            for decode in (codec.decode_client, codec.decode_server):
                for frame in (data, text):
                    with contextlib.suppress(fuzz.ProtocolError):
                        decode(frame)

    return one


def _protocol(fuzz: Any) -> Callable[[bytes], None]:
    """Frames with a zero byte and a newline between; the first byte chooses the codec."""

    def one(data: bytes) -> None:
        codec = fuzz.MsgpackCodec() if data[:1] > b"\x7f" else fuzz.JsonCodec()
        protocol = fuzz.ServerProtocol(codec, ("en", "de"), endpoint_silence=0.6)
        for frame in data[1:].split(b"\0\n"):
            if codec.subprotocol.endswith("json") and frame[:1] == b"{":
                protocol.receive(frame.decode("utf-8", "replace"))
            else:
                protocol.receive(frame)
        protocol.stop()

    return one


def _handshake(fuzz: Any) -> Callable[[bytes], None]:
    """Lines of ``name: value`` become headers; one that begins with ? becomes the query."""
    from starlette.websockets import WebSocket
    from whisper_stream.server.config import ServerConfig
    from whisper_stream.server.http.admission import Admission
    from whisper_stream.server.http.auth import Authenticator, parse_keys
    from whisper_stream.server.http.handshake import Handshake
    from whisper_stream.server.metrics import Metrics

    entrances = [
        Handshake(
            Authenticator(parse_keys(keys, "keys"), ["https://a.example"], local=local),
            Admission(0.9),
            Metrics(),
            ServerConfig(),
        )
        for keys, local in (([], True), ([f"anna:{_KEY}"], False))
    ]

    async def nothing(*_: object) -> Any:
        raise AssertionError("nothing is sent while a handshake is checked")

    def one(data: bytes) -> None:
        headers, query = [], b""
        for line in data.split(b"\n")[:100]:
            name, _, value = line.partition(b": ")
            if line[:1] == b"?":
                query = line[1:]
            else:
                headers.append((name.lower(), value))
        offered = [v.decode("latin-1") for n, v in headers if n == b"sec-websocket-protocol"]
        scope = {"type": "websocket", "headers": headers, "query_string": query, "path": "/"}
        for entrance in entrances:
            entrance.check(WebSocket(scope | {"subprotocols": offered}, nothing, nothing))

    return one


def _container(fuzz: Any) -> Callable[[bytes], None]:
    kinds = ("webm", "ogg", "mp3", "wav", "flac", "mp4", "aac")

    def one(data: bytes) -> None:
        kind = kinds[data[0] % len(kinds)] if data else "webm"
        fuzz.read_container(kind, data[1:], 4_000)

    return one


TARGETS = {
    "codec": _codec,
    "protocol": _protocol,
    "handshake": _handshake,
    "container": _container,
}


def _examples(target: str, fuzz: Any) -> list[bytes]:
    """Good inputs to begin with."""
    json_frames, packed = [], []
    for message in fuzz.MESSAGES:
        packed.append(fuzz.msgpack.packb(message))
        if message["type"] != "audio":
            json_frames.append(fuzz.json.dumps(message).encode())
    match target:
        case "codec":
            return json_frames + packed
        case "protocol":
            start, pack = json_frames[0], packed[0]
            return [b"\0" + start + b"\0\n" + each for each in json_frames] + [
                b"\xff" + pack + b"\0\n" + each for each in packed
            ]
        case "handshake":
            return [
                b"Host: 127.0.0.1:9090\nOrigin: http://127.0.0.1:9090",
                f"Host: x\nAuthorization: Bearer {_KEY}\nX-API-Key: {_KEY}\n?key={_KEY}".encode(),
                f"Sec-WebSocket-Protocol: whisper-stream.key.{_KEY}".encode(),
                b"Sec-WebSocket-Protocol: whisper-stream.v1.json\nOrigin: https://[::1]:9090",
            ]
        case _:
            files = fuzz.good_files(0.1)
            return [bytes([number]) + files[kind] for number, kind in enumerate(files)]


def main() -> None:
    target, *flags = sys.argv[1:]
    import atheris

    with atheris.instrument_imports(include=["whisper_stream.server", "whisper_stream.streamer"]):
        import fuzz

        one = TARGETS[target](fuzz)
    folder = next((Path(flag) for flag in flags if not flag.startswith("-")), None)
    if folder is not None:
        for number, example in enumerate(_examples(target, fuzz)):
            (folder / f"good-{number}").write_bytes(example)
    atheris.Setup([sys.argv[0], *flags], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
