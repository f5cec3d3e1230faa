"""Streams that are played faster than they were spoken leave the engine to those who speak."""

from __future__ import annotations

import asyncio

import pytest
from whisper_stream.server.metrics import Metrics
from whisper_stream.server.stream.outbox import Mailbox
from whisper_stream.server.stream.recording import Recording
from whisper_stream.server.stream.runner import AHEAD_SECONDS, MOST_REST, StreamBridge
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.config import StreamConfig

from ...helpers.server_rig import ScriptedEngine, speech


def rests(monkeypatch: pytest.MonkeyPatch, seconds: float, others: int, took: float) -> list[float]:
    """How long a stream rests that has sent so many seconds at once, after a job that took so long."""
    slept: list[float] = []
    sleep = asyncio.sleep

    async def record(delay: float) -> None:
        if delay:
            slept.append(delay)
        await sleep(0)

    async def nothing() -> None:
        pass

    async def scenario() -> None:
        engine = ScriptedEngine()
        recording = Recording(engine.new_session(StreamConfig()), PcmIngest("s16le", 16_000, 1))
        bridge = StreamBridge(
            recording,
            engine,
            Mailbox(),
            "s",
            lambda segment: None,
            nothing,
            Metrics(),
            lambda: others,
        )
        await bridge.push(speech(seconds))
        await bridge._rest(took)
        bridge.close()
        engine.close()

    monkeypatch.setattr(asyncio, "sleep", record)
    asyncio.run(scenario())
    return slept


def test_ahead_of_time_it_leaves_each_other_stream_as_much_as_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert rests(monkeypatch, 2 * AHEAD_SECONDS, others=3, took=2.0) == [6.0]
    assert rests(monkeypatch, 2 * AHEAD_SECONDS, others=100, took=2.0) == [MOST_REST]


def test_alone_or_at_the_pace_of_speech_nobody_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rests(monkeypatch, 2 * AHEAD_SECONDS, others=0, took=2.0) == []
    assert rests(monkeypatch, 0.5 * AHEAD_SECONDS, others=3, took=2.0) == []
