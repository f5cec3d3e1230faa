"""Jobs of one process that run in another: both ends of the line in one loop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future

import numpy as np
import pytest
from whisper_stream.server.cluster.engine_host import EngineHost
from whisper_stream.server.cluster.ipc import Channel, EngineReport, Message, StartIngress
from whisper_stream.server.cluster.remote_engine import RemoteEngine
from whisper_stream.server.cluster.shared_audio import SLOT_SAMPLES, SharedAudioSlots
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.errors import RemoteJobError, failure_name
from whisper_stream.server.process_stats import ProcessStats
from whisper_stream.streamer.engine.engine import EngineStatistics
from whisper_stream.streamer.errors import EngineClosedError
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from ...helpers.server_rig import ScriptedEngine

IDLE = EngineStatistics(queued=0, running=0, done=0, failed=0, audio_seconds=0.0, busy_seconds=0.0)
START = StartIngress(
    number=1,
    count=3,
    folder="",
    config=ServerConfig(max_streams=7),
    model="m",
    languages=(),
    statistics=IDLE,
)
WAIT = 10.0  # seconds until a test gives up


def audio(samples: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).uniform(-1, 1, samples).astype(np.float32)


class Ends:
    """Both ends of a line: an engine here, what asks for it there.

    ``arrived`` has the futures of jobs, in the order in which they reached the engine.
    """

    def __init__(self, engine: ScriptedEngine) -> None:
        near, far = socket.socketpair()
        descriptor = SharedAudioSlots.create()
        self.near = Channel(near)
        self.arrived: asyncio.Queue[Future[DecodeResult]] = asyncio.Queue()
        self.others: list[Message] = []
        self.lost, self.host_lost = asyncio.Event(), asyncio.Event()
        self.remote = RemoteEngine(Channel(far), SharedAudioSlots(descriptor), START, self.lost.set)
        host = EngineHost(self.near, SharedAudioSlots(descriptor), _Watched(engine, self.arrived))

        def take(message: Message) -> None:
            if not host.take(message):
                self.others.append(message)

        def lose() -> None:
            host.cancel_all()
            self.host_lost.set()

        self.near.start(take, lose)
        self.remote.start(lambda: ProcessStats(streams=5))
        os.close(descriptor)

    async def reach(self) -> Future[DecodeResult]:
        """Return the future of the next job that reaches the engine."""
        async with asyncio.timeout(WAIT):
            return await self.arrived.get()

    def close(self) -> None:
        self.remote.close()
        self.near.close()


class _Watched(ScriptedEngine):
    """The scripted engine, whose jobs are seen to arrive."""

    def __init__(
        self, engine: ScriptedEngine, arrived: asyncio.Queue[Future[DecodeResult]]
    ) -> None:
        self._inner = engine
        self._arrived = arrived

    def submit(self, job: DecodeJob) -> Future[DecodeResult]:
        future = self._inner.submit(job)
        self._arrived.put_nowait(future)
        return future


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.close()


def test_jobs_come_out_as_they_went_in(engine: ScriptedEngine) -> None:
    seen: list[DecodeJob] = []
    engine.spoil = lambda job: seen.append(
        DecodeJob(
            **{name: getattr(job, name) for name in job.__slots__} | {"audio": job.audio.copy()}
        )
    )
    jobs = [
        DecodeJob(audio=audio(5_000), prompt=(1, 2), prefix=(3,), draft=(4, 5), language="de"),
        DecodeJob(audio=audio(SLOT_SAMPLES, 1), languages=("en",), switch_above=0.5, endpoint=True),
        DecodeJob(audio=audio(SLOT_SAMPLES + 1, 2), task="translate"),  # too long for a slot
        DecodeJob(audio=audio(0)),
    ]

    async def run() -> None:
        ends = Ends(engine)
        for job in jobs:
            here = await asyncio.wrap_future(engine.submit(job))
            assert await asyncio.wrap_future(ends.remote.submit(job)) == here
        ends.close()

    asyncio.run(run())
    for ours, theirs in zip(seen[::2], seen[1::2], strict=True):
        assert np.array_equal(ours.audio, theirs.audio) and theirs.audio.dtype == np.float32
        for name in set(DecodeJob.__slots__) - {"audio"}:
            assert getattr(ours, name) == getattr(theirs, name)


def test_many_jobs_at_once_are_not_mixed_up(engine: ScriptedEngine) -> None:
    jobs = [DecodeJob(audio=audio(1_000 + n, n), prompt=tuple(range(n))) for n in range(1_200)]

    async def run() -> None:  # more than there are slots, and more than a socket holds
        ends = Ends(engine)
        futures = [asyncio.wrap_future(ends.remote.submit(job)) for job in jobs]
        results = await asyncio.gather(*futures)
        for job, result in zip(jobs, results, strict=True):
            assert result.words[0].text == engine.word_text(job)
        ends.close()

    asyncio.run(run())


def test_a_failed_job_says_which_error_it_was_and_no_more(engine: ScriptedEngine) -> None:
    def spoil(job: DecodeJob) -> None:
        raise FloatingPointError("a secret that was said")

    engine.spoil = spoil

    async def run() -> None:
        ends = Ends(engine)
        with pytest.raises(RemoteJobError, match="FloatingPointError") as failed:
            await asyncio.wrap_future(ends.remote.submit(DecodeJob(audio=audio(10))))
        assert failure_name(failed.value) == "FloatingPointError"
        assert "secret" not in str(failed.value)
        ends.close()

    asyncio.run(run())


def test_a_cancelled_job_is_not_begun(engine: ScriptedEngine) -> None:
    async def run() -> None:
        ends = Ends(engine)
        engine.gate.clear()
        first = ends.remote.submit(DecodeJob(audio=audio(10)))
        second = ends.remote.submit(DecodeJob(audio=audio(20)))
        await ends.reach()
        waiting = await ends.reach()
        assert second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.wrap_future(waiting), WAIT)
        engine.gate.set()
        await asyncio.wrap_future(first)
        assert engine.jobs == 1
        ends.close()
        with pytest.raises(EngineClosedError):
            ends.remote.submit(DecodeJob(audio=audio(10)))

    asyncio.run(run())


def test_jobs_of_an_engine_that_has_closed_are_cancelled(engine: ScriptedEngine) -> None:
    def refuse(job: DecodeJob) -> None:
        raise EngineClosedError

    engine.spoil = refuse

    async def run() -> None:
        ends = Ends(engine)
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wrap_future(ends.remote.submit(DecodeJob(audio=audio(10))))
        ends.close()

    asyncio.run(run())


def test_each_end_finds_out_that_the_other_is_gone(engine: ScriptedEngine) -> None:
    async def run() -> None:
        engine.gate.clear()
        ends = Ends(engine)
        jobs = [ends.remote.submit(DecodeJob(audio=audio(10))) for _ in range(2)]
        await ends.reach()
        ends.near.close()
        await asyncio.wait_for(ends.lost.wait(), WAIT)
        assert all(job.cancelled() for job in jobs)
        ends = Ends(engine)
        ends.remote.submit(DecodeJob(audio=audio(10)))
        waiting = await ends.reach()
        ends.remote.close()
        await asyncio.wait_for(ends.host_lost.wait(), WAIT)
        assert waiting.cancelled()
        assert not ends.lost.is_set()  # an end does not hear of its own closing
        engine.gate.set()

    asyncio.run(run())


def test_statistics_are_those_that_the_engine_reported_last(engine: ScriptedEngine) -> None:
    async def run() -> None:
        ends = Ends(engine)
        assert ends.remote.statistics() == IDLE
        latest = IDLE._replace(done=5, busy_seconds=1.5)
        ends.near.send(EngineReport(statistics=latest))
        await asyncio.wrap_future(ends.remote.submit(DecodeJob(audio=audio(10))))  # comes after it
        assert ends.remote.statistics() == latest
        ends.close()

    asyncio.run(run())
