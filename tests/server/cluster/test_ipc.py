"""The channel between two processes, and what it carries."""

from __future__ import annotations

import asyncio
import os
import socket

import numpy as np
import pytest
from whisper_stream.server.cluster.ipc import (
    Channel,
    CollectStats,
    EngineReady,
    Message,
    RunJob,
    StartFailed,
    StatsReport,
)
from whisper_stream.server.cluster.shared_audio import SharedAudioSlots
from whisper_stream.server.metrics import Metrics
from whisper_stream.server.process_stats import GpuUsage, ProcessStats
from whisper_stream.streamer.jobs import DecodeJob

WAIT = 10.0  # seconds until a test gives up


def pair() -> tuple[Channel, Channel]:
    near, far = socket.socketpair()
    return Channel(near), Channel(far)


def test_the_first_message_needs_no_loop() -> None:
    near, far = pair()
    first = EngineReady(model="m", languages=("en",))
    near.send(first)
    assert far.receive_first() == first
    near.close()
    assert far.receive_first() is None
    far.close()


def test_messages_arrive_as_they_were_sent_and_in_order() -> None:
    metrics = Metrics()
    metrics.lag.observe(3.0)
    metrics.refusals["key"] += 1
    gpu = GpuUsage(memory_bytes=1, reserved_bytes=2)
    sent: list[Message] = [
        StartFailed(sentence="no room"),
        StatsReport(id=3, stats=ProcessStats(streams=2, gpu=gpu, metrics=metrics.snapshot())),
        *(CollectStats(id=number) for number in range(50_000)),  # more than a socket holds
    ]

    async def run() -> list[Message]:
        near, far = pair()
        got: list[Message] = []
        over = asyncio.Event()

        def take(message: Message) -> None:
            got.append(message)
            if message == sent[-1]:
                over.set()

        def send_rest() -> None:
            for message in sent[100:]:
                near.send(message)

        for message in sent[:100]:
            near.send(message)  # before either end is started
        far.start(take, over.set)
        near.start(got.append, over.set)
        await asyncio.to_thread(send_rest)
        await asyncio.wait_for(over.wait(), WAIT)
        near.close()
        far.close()
        return got

    assert asyncio.run(run()) == sent


def test_what_is_sent_after_the_end_is_dropped() -> None:
    near, far = pair()
    near.close()
    near.send(CollectStats(id=1))
    assert far.receive_first() is None
    far.close()


@pytest.mark.parametrize("slot", [None, 3])
def test_a_job_is_the_same_after_the_journey(slot: int | None) -> None:
    descriptor = SharedAudioSlots.create()
    writer, reader = SharedAudioSlots(descriptor), SharedAudioSlots(descriptor)
    os.close(descriptor)
    audio = np.linspace(-1, 1, 800, dtype=np.float32)
    job = DecodeJob(audio=audio, prompt=(1, 2), languages=("de",), endpoint=True)
    if slot is not None:
        slot = writer.put(audio)
    back = RunJob.pack(7, job, slot).unpack(reader)
    assert np.array_equal(back.audio, audio)
    names = set(DecodeJob.__slots__) - {"audio"}
    assert all(getattr(back, name) == getattr(job, name) for name in names)
