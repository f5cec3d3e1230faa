"""A daemon with ingress processes and a scripted engine, for tests and benchmarks. No model, no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import connect
from websockets.typing import Subprotocol
from whisper_stream.server import ingress, wire
from whisper_stream.server.interfaces import Session
from whisper_stream.server.main import main
from whisper_stream.server.remote_engine import RemoteEngine
from whisper_stream.streamer.config import StreamConfig

from .server_rig import Peer, ScriptedEngine, ScriptedSession

ROOT = Path(__file__).parent.parent
COMMAND = (sys.executable, "-m", "tests.ingress_rig", "ingress")


class ScriptedRemote(RemoteEngine):
    """Sessions that need no speech: a word for every half second."""

    def new_session(self, config: StreamConfig) -> Session:  # type: ignore[override]
        return ScriptedSession(config, 60 * 16_000)


class Running:
    """A daemon in processes of its own, whose clients are like those of ``server_rig.Daemon``."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.port = int(url.rsplit(":", 1)[1].split("/")[0])
        self.http = f"http://127.0.0.1:{self.port}"
        self.url = url

    @contextmanager
    def connect(
        self, subprotocol: str | None = wire.JSON_SUBPROTOCOL, **more: Any
    ) -> Iterator[Peer]:
        offered = None if subprotocol is None else [Subprotocol(subprotocol)]
        plain: dict[str, Any] = {"compression": None, "proxy": None, "max_size": None}
        with connect(more.pop("url", self.url), subprotocols=offered, **plain, **more) as socket:
            yield Peer(socket)

    def children(self) -> list[int]:
        """Ids of the ingress processes, oldest first."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Signal the daemon -> its exit code, and what it logged."""
        self.process.send_signal(number)
        _, log = self.process.communicate(timeout=30)
        return self.process.returncode, log


@contextmanager
def running(*flags: str, environment: dict[str, str] | None = None) -> Iterator[Running]:
    """Run a daemon on a free port until the end of the block, unless it was stopped before."""
    command = [sys.executable, "-m", "tests.ingress_rig", "serve", "--port", "0", "--announce"]
    process = subprocess.Popen(
        [*command, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
    )
    try:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield Running(process, json.loads(line)["url"])
    finally:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)


def run(argv: Sequence[str]) -> int:
    match argv[0]:
        case "serve":
            return main(argv[1:], lambda config: ScriptedEngine(), COMMAND)
        case "ingress":
            return ingress.main(argv[1:], ScriptedRemote)
    raise AssertionError(argv)


__all__ = ["Peer", "Running", "running"]

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
