"""A daemon on a real socket with a scripted engine, for the tests of the server."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.daemon.listener import DaemonServer, bind
from whisper_stream.server.engine import Session
from whisper_stream.server.http.app import Hub
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.codec import codec_for
from whisper_stream.streamer.commands import Configure, EndOfStream, Flush, Request
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.engine.engine import EngineStatistics
from whisper_stream.streamer.events import (
    Commit,
    Done,
    Event,
    Flushed,
    Gap,
    Partial,
    SegmentClosed,
    Word,
)
from whisper_stream.streamer.jobs import DecodedWord, DecodeJob, DecodeResult

STEP = 8_000  # samples that the scripted session decodes at once


class ScriptedSession:
    """Says one word for every half second, its text a checksum of the very samples fed."""

    def __init__(self, config: StreamConfig, capacity: int) -> None:
        self.config = config
        self.finished = False
        self.failures: list[str] = []
        self.most_held = 0
        self._capacity = capacity
        self._held: NDArray[np.float32] = np.zeros(0, np.float32)
        self._position = 0  # of the first held sample
        self._words: list[Word] = []
        self._flushes: list[str] = []
        self._job_samples = 0
        self._ending = False

    @property
    def room(self) -> int:
        return self._capacity - self._held.size

    def feed(self, samples: NDArray[np.float32]) -> list[Event]:
        assert samples.size <= self.room
        self._held = np.concatenate([self._held, samples])
        self.most_held = max(self.most_held, self._held.size)
        return []

    def next_job(self, now: float) -> DecodeJob | None:
        due = self._held.size if self._ending or self._flushes else self._held.size - STEP + 1
        if self._job_samples or due <= 0:
            return None
        self._job_samples = min(STEP, self._held.size)
        endpoint = self._ending and self._job_samples == self._held.size
        return DecodeJob(audio=self._held[: self._job_samples].copy(), endpoint=endpoint)

    def finish_job(self, result: DecodeResult, now: float) -> list[Event]:
        start, end = self._position, self._position + self._job_samples
        words = tuple(
            Word(text=word.text, start_sample=start, end_sample=end, probability=word.probability)
            for word in result.words
        )
        self._words.extend(words)
        self._drop_job()
        return [Partial(words=words), Commit(words=words), *self._settle()]

    def fail_job(self, reason: str, now: float) -> list[Event]:
        self.failures.append(reason)
        start, end = self._position, self._position + self._job_samples
        self._drop_job()
        return [Gap(start_sample=start, end_sample=end, reason=reason), *self._settle()]

    def request(self, command: Request) -> list[Event]:
        match command:
            case Flush(id=flush_id):
                self._flushes.append(flush_id)
            case Configure():
                self.config = command.revise(self.config)
            case EndOfStream():
                self._ending = True
        return self._settle()

    def _drop_job(self) -> None:
        self._held = self._held[self._job_samples :]
        self._position += self._job_samples
        self._job_samples = 0

    def _settle(self) -> list[Event]:
        if self._held.size:
            return []
        events: list[Event] = [
            Flushed(flush_id=flush_id, sample=self._position) for flush_id in self._flushes
        ]
        self._flushes.clear()
        if self._ending:
            self.finished = True
            segment = SegmentClosed(
                segment_id=1,
                words=tuple(self._words),
                start_sample=0,
                end_sample=self._position,
                language=self.config.language or "en",
                avg_logprob=-0.25,
                no_speech_prob=0.01,
                compression_ratio=1.1,
                temperature=0.0,
            )
            events += [segment, Done(samples=self._position, words=len(self._words))]
        return events


@dataclass
class ScriptedEngine:
    """Answers jobs in a thread. ``gate`` holds them back; ``spoil`` may raise for a job."""

    languages: tuple[str, ...] = ("en", "de")
    model_name: str = "scripted"
    capacity: int = 60 * 16_000
    gate: threading.Event = field(default_factory=threading.Event)
    spoil: Callable[[DecodeJob], None] = lambda job: None
    sessions: list[ScriptedSession] = field(default_factory=list)
    jobs: int = 0
    word_text: Callable[[DecodeJob], str] = lambda job: f" {zlib.crc32(job.audio.tobytes()):08x}"

    def __post_init__(self) -> None:
        self.gate.set()
        self._pool = ThreadPoolExecutor(1)

    def new_session(self, config: StreamConfig) -> Session:
        session = ScriptedSession(config, self.capacity)
        self.sessions.append(session)
        return session

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        return self._pool.submit(self._decode, job)

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            queued=0, running=0, done=self.jobs, failed=0, audio_seconds=0.0, busy_seconds=0.0
        )

    def close(self) -> None:
        self.gate.set()
        self._pool.shutdown()

    def _decode(self, job: DecodeJob) -> DecodeResult:
        self.gate.wait()
        self.jobs += 1
        self.spoil(job)
        word = DecodedWord(
            text=self.word_text(job), tokens=(1,), start=0.0, end=0.5, probability=0.5
        )
        return DecodeResult(tokens=(1,), words=(word,), language="en")


@dataclass
class Daemon:
    """A running server. ``stop`` asks it to stop gracefully, as a signal would."""

    port: int
    server: DaemonServer
    hub: Hub
    thread: threading.Thread

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}{wire.STREAM_PATH}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.server.should_exit = True

    @contextmanager
    def connect(
        self, subprotocol: str | None = wire.JSON_SUBPROTOCOL, **more: Any
    ) -> Iterator[Peer]:
        offered = None if subprotocol is None else [Subprotocol(subprotocol)]
        url = more.pop("url", self.url)
        with connect(
            url, subprotocols=offered, compression=None, proxy=None, max_size=None, **more
        ) as socket:
            yield Peer(socket)


class Peer:
    """A client that sends and collects whole messages."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.codec = codec_for(socket.subprotocol)

    def send(self, *messages: wire.ClientMessage) -> None:
        for message in messages:
            self.socket.send(self.codec.encode(message))

    def audio(self, data: bytes) -> None:
        self.send(wire.Audio(data=data))

    def receive(self) -> wire.ServerMessage:
        return self.codec.decode_server(self.socket.recv(timeout=20))

    def until(self, kind: type[wire.ServerMessage]) -> list[wire.ServerMessage]:
        """Receive up to and including the first message of a kind."""
        messages = [self.receive()]
        while not isinstance(messages[-1], kind):
            messages.append(self.receive())
        return messages

    def rest(self) -> tuple[list[wire.ServerMessage], int, str]:
        """Receive until the server closes; return the messages, close code and reason."""
        messages = []
        try:
            while True:
                messages.append(self.receive())
        except ConnectionClosed as closed:
            assert closed.rcvd is not None, f"closed without a close frame: {closed!r}"
            return messages, closed.rcvd.code, closed.rcvd.reason


@contextmanager
def daemon(engine: ScriptedEngine | None = None, **options: Any) -> Iterator[Daemon]:
    """Run a daemon on a free port; stop it gracefully at the end."""
    engine = engine or ScriptedEngine()
    # A scripted engine is never busy, and tests open many streams at once.
    config = ServerConfig(**{"max_load": 0.0, **options})
    ready = threading.Event()
    sock = bind("127.0.0.1", 0)
    sock.listen(16)
    hub = Hub(engine, config)
    server = DaemonServer(hub, config, ready.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
    running = Daemon(sock.getsockname()[1], server, hub, thread)
    thread.start()
    try:
        assert ready.wait(20)
        yield running
    finally:
        running.stop()
        thread.join(30)
        engine.close()
        sock.close()
        assert not thread.is_alive()


@contextmanager
def full_disk(journal: Path, table: str) -> Iterator[None]:
    """Let nothing more be written to a table of the journal, as if the disk were full."""
    with closing(sqlite3.connect(journal, timeout=30)) as database:
        database.execute(
            f"CREATE TRIGGER full BEFORE INSERT ON {table} "
            "BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
        )
        database.commit()
        yield
        database.execute("DROP TRIGGER full")
        database.commit()


def speech(seconds: float, seed: int = 0) -> bytes:
    """Return s16le noise at 16 kHz."""
    samples = np.random.default_rng(seed).integers(-9_000, 9_000, int(seconds * 16_000))
    return samples.astype("<i2").tobytes()
