"""Messages and audio between the processes of one daemon; counts that they share."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.server.cluster.engine_host import EngineHost
from whisper_stream.server.cluster.ipc import Channel, EngineReport, Message, StartIngress
from whisper_stream.server.cluster.remote_engine import RemoteEngine
from whisper_stream.server.cluster.shared_audio import SLOT_SAMPLES, SharedAudioSlots
from whisper_stream.server.cluster.shared_counters import (
    SharedAccount,
    SharedAdmission,
    SharedCounters,
)
from whisper_stream.server.cluster.topology import new_id, owner_of
from whisper_stream.server.config import ServerConfig
from whisper_stream.server.errors import RemoteJobError, failure_name
from whisper_stream.server.http.auth import Account
from whisper_stream.server.metrics import Metrics
from whisper_stream.server.process_stats import GpuUsage, ProcessStats
from whisper_stream.streamer.engine.engine import EngineStatistics
from whisper_stream.streamer.errors import EngineClosedError
from whisper_stream.streamer.jobs import DecodeJob

from ...helpers.server_rig import ScriptedEngine

HELLO = StartIngress(
    number=1, count=3, folder="", config=ServerConfig(max_streams=7), model="m", languages=()
)


def audio(samples: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).uniform(-1, 1, samples).astype(np.float32)


class Ends:
    """Both ends of a line in one loop: an engine here, what asks for it there."""

    def __init__(self, engine: ScriptedEngine) -> None:
        near, far = socket.socketpair()
        descriptor = SharedAudioSlots.create()
        self.lost: list[str] = []
        self.others: list[Message] = []
        self.remote = RemoteEngine(
            Channel(far), SharedAudioSlots(descriptor), HELLO, lambda: self.lost.append("engine")
        )
        self.host = EngineHost(
            Channel(near), SharedAudioSlots(descriptor), engine, self.others.append
        )
        self.remote.start()
        os.close(descriptor)

    def close(self) -> None:
        self.remote.close()
        self.host.close()


@pytest.fixture
def engine() -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine()
    yield engine
    engine.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - what is waited for is in another object's hands
            await asyncio.sleep(0.001)


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
        assert ends.host.jobs == 0
        ends.close()

    asyncio.run(run())


def test_failures_keep_their_names_and_cancelling_is_passed_on(engine: ScriptedEngine) -> None:
    async def run() -> None:
        ends = Ends(engine)

        def spoil(job: DecodeJob) -> None:
            raise FloatingPointError("a secret that was said")

        engine.spoil = spoil
        with pytest.raises(RemoteJobError) as failed:
            await asyncio.wrap_future(ends.remote.submit(DecodeJob(audio=audio(10))))
        assert failure_name(failed.value) == "FloatingPointError"
        assert "secret" not in str(failed.value)
        engine.spoil = lambda job: None
        engine.gate.clear()
        first = ends.remote.submit(DecodeJob(audio=audio(10)))
        second = ends.remote.submit(DecodeJob(audio=audio(20)))
        await until(lambda: ends.host.jobs == 2)
        assert second.cancel()
        await until(lambda: ends.host.jobs == 1)  # the engine has dropped it
        engine.gate.set()
        await asyncio.wrap_future(first)
        assert engine.jobs == 2  # the failed one and the first
        ends.close()
        with pytest.raises(EngineClosedError):
            ends.remote.submit(DecodeJob(audio=audio(10)))

    asyncio.run(run())


def test_each_end_finds_out_that_the_other_is_gone(engine: ScriptedEngine) -> None:
    async def run() -> None:
        engine.gate.clear()
        ends = Ends(engine)
        running = ends.remote.submit(DecodeJob(audio=audio(10)))
        waiting = ends.remote.submit(DecodeJob(audio=audio(10)))
        await until(lambda: ends.host.jobs == 2)
        ends.host.channel.close()
        await until(lambda: ends.lost == ["engine"])
        assert running.cancelled() and waiting.cancelled()
        ends = Ends(engine)
        ends.remote.submit(DecodeJob(audio=audio(10)))
        await until(lambda: ends.host.jobs == 1)
        ends.remote.close()
        await until(lambda: ends.host.jobs == 0)
        assert ends.lost == []  # nobody is told of what they did themselves
        engine.gate.set()

    asyncio.run(run())


def test_statistics_are_those_of_the_engine(engine: ScriptedEngine) -> None:
    async def run() -> None:
        ends = Ends(engine)
        told = EngineStatistics(**dict.fromkeys(EngineStatistics._fields, 0))
        told = told._replace(done=5, busy_seconds=1.5)
        ends.host.channel.send(EngineReport(fields=told._asdict()))
        await until(lambda: isinstance(ends.remote.statistics(), EngineStatistics))
        assert ends.remote.statistics() == told
        ends.host.channel.send(EngineReport(fields={"other": 1}))
        await until(lambda: ends.remote.statistics() == {"other": 1})
        ends.close()

    asyncio.run(run())


def test_the_first_message_needs_no_loop() -> None:
    near, far = (Channel(each) for each in socket.socketpair())
    near.send(HELLO)
    assert far.first() == HELLO
    near.close()
    assert far.first() is None
    far.close()


@given(st.integers(1, 64), st.data())
def test_the_owner_of_a_stream_can_be_read_from_its_id(count: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, count - 1))
    name = new_id(number, count)
    assert len(name) == 16 and int(name, 16) >= 0
    assert owner_of(name, count) == number
    for other in (1, 2, 5):
        assert owner_of(name, other) in range(other)


@pytest.mark.parametrize("name", ["", "zz12", "é", "--"])
def test_what_is_no_id_has_no_owner(name: str) -> None:
    assert owner_of(name, 4) is None


def test_counts_are_shared_and_those_of_the_dead_are_taken_back() -> None:
    first = SharedCounters.create(0)
    second = SharedCounters(os.dup(first.descriptor), 1)
    first.publish(3, 4)
    second.publish(2, 2)
    assert (first.streams, first.connections) == (second.streams, second.connections) == (5, 6)
    digest = bytes(range(32))
    mine, theirs = (
        SharedAccount(Account(name="a", digest=digest, most_seconds=60.0), board)
        for board in (first, second)
    )
    other = SharedAccount(Account(name="b", digest=digest[::-1], most_bytes=10), second)
    mine.streams += 1
    theirs.streams += 2
    other.streams += 1
    assert (mine.streams, theirs.streams, other.streams) == (3, 3, 1)
    today = datetime.date(2026, 5, 1)
    assert mine.use(today, 0, 40.0) is None
    assert theirs.use(today, 0, 20.0) is None
    assert theirs.use(today, 0, 1.0) == "1 minutes of audio a day"
    assert mine.use(today + datetime.timedelta(1), 0, 40.0) is None  # a new day
    assert other.use(today, 11, 0.0) == "10 bytes of audio a day"
    first.clear(1)
    assert (first.streams, first.connections, mine.streams, other.streams) == (3, 4, 1, 0)


def test_streams_are_admitted_by_what_all_processes_let_in() -> None:
    board = SharedCounters.create(0)
    one = SharedAdmission(0.9, board)
    two = SharedAdmission(0.9, SharedCounters(os.dup(board.descriptor), 1))
    idle = EngineStatistics(**dict.fromkeys(EngineStatistics._fields, 0))
    for each in (one, two):
        each.observe(1.0, idle, 0)
        each.observe(2.0, idle, 0)
    admitted = 0
    while two.admits(2.0, max(1, admitted)) and admitted < 100:
        one.admitted(2.0)
        admitted += 1
    assert 0 < admitted < 20  # an unmeasured stream is taken for a sixteenth of the engine
    assert two.admits(8.0, admitted)  # they show in the load by now


def test_figures_add_up() -> None:
    def counted(times: int) -> Metrics:
        metrics = Metrics()
        for number in range(times):
            metrics.streams_opened += 1
            metrics.audio_seconds += 0.5
            metrics.errors["gap"] += 1
            metrics.refusals["origin" if number % 2 else "key"] += 1
            metrics.lag.observe(number / 3)
            metrics.decode_time.observe(number / 30)
        return metrics

    gpu = GpuUsage(memory_bytes=1, reserved_bytes=2, utilization=0.5)
    one = ProcessStats(streams=1, connections=2, cpu_seconds=0.5, metrics=counted(3).state())
    two = ProcessStats(streams=4, memory_bytes=9, gpu=gpu, metrics=counted(4).state())
    both = one + two + ProcessStats()
    assert (both.streams, both.connections, both.cpu_seconds, both.memory_bytes) == (5, 2, 0.5, 9)
    assert both.gpu == gpu and both.past == ProcessStats(cpu_seconds=0.5, metrics=both.metrics)
    together = counted(3)
    for name in ("lag", "decode_time"):
        for number in range(4):
            getattr(together, name).observe(number / (3 if name == "lag" else 30))
    text = Metrics.of(both.metrics).text({})
    assert "streams_opened_total 7" in text and "audio_seconds_total 3.5" in text
    assert 'refusals_total{reason="key"} 4' in text and 'errors_total{kind="gap"} 7' in text
    for line in together.text({}).splitlines():
        if "lag" in line or "decode" in line:
            assert line in text
