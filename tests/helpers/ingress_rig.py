"""A daemon of several processes with scripted engines, for tests and benchmarks. No model, no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from websockets.sync.client import connect
from websockets.typing import Subprotocol
from whisper_stream.server.cluster import engine_process, ingress
from whisper_stream.server.cluster.engine_pool import EnginePool
from whisper_stream.server.cluster.ipc import StartEngine
from whisper_stream.server.cluster.remote_engine import RemoteEngine
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.daemon.main import main
from whisper_stream.server.engine import Session
from whisper_stream.server.errors import ConfigError
from whisper_stream.server.protocol import messages as wire
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.errors import EngineClosedError
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from .server_rig import Peer, ScriptedEngine, ScriptedSession

MARK_SAMPLES = 160
FATAL_MARK, LOST_MARK = 0.5, 0.25
BROKEN = "TEST_BROKEN_ENGINE"
ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "tests.helpers.ingress_rig", "ingress")
ENGINE_COMMAND = (sys.executable, "-m", "tests.helpers.ingress_rig", "engine")


class ScriptedRemote(RemoteEngine):
    """Sessions that need no speech: a word for every half second."""

    def new_session(self, config: StreamConfig) -> Session:
        return ScriptedSession(config, 60 * 16_000)


class ScriptedPool(EnginePool):
    """The same, where no ingress process makes the sessions."""

    def new_session(self, config: StreamConfig) -> Session:
        return ScriptedSession(config, 60 * 16_000)


class MarkedEngine(ScriptedEngine):
    """Samples at the start of a job tell it to end its process at once; or to lose its GPU, if it is the first."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number
        self._lost = False

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        if self._lost:
            raise EngineClosedError
        return super().submit(job)

    def _decode(self, job: DecodeJob) -> DecodeResult:
        mark = job.audio[:MARK_SAMPLES]
        if np.allclose(mark, FATAL_MARK, atol=1e-3):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._number == 0 and np.allclose(mark, LOST_MARK, atol=1e-3):
            self._lost = True
            threading.Timer(0.3, os._exit, [os.EX_SOFTWARE]).start()
            raise EngineClosedError
        return super()._decode(job)


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
    command = [
        sys.executable,
        "-m",
        "tests.helpers.ingress_rig",
        "serve",
        "--port",
        "0",
        "--announce",
        "--max-load",  # scripted engines are never busy, and tests open many streams at once
        "0",
    ]
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
            return main(argv[1:], _open, COMMAND)
        case "ingress":
            return ingress.main(argv[1:], ScriptedRemote)
        case "engine":
            if os.environ.get(BROKEN):
                return engine_process.main(argv[1:], _broken)
            return engine_process.main(argv[1:], lambda asked: MarkedEngine(asked.number))
    raise AssertionError(argv)


def _open(config: ServerConfig) -> ScriptedEngine | ScriptedPool:
    if config.engines:
        return ScriptedPool(config, lambda: os._exit(os.EX_SOFTWARE), ENGINE_COMMAND)
    return ScriptedEngine()


def _broken(asked: StartEngine) -> ScriptedEngine:
    """Told by the environment what is wrong."""
    if os.environ[BROKEN] == "crash":
        raise ValueError("secret")
    raise ConfigError(f"no model for engine {asked.number + 1} of {asked.count}")


__all__ = ["Peer", "Running", "running"]

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
