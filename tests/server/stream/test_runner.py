"""A stream with an event loop: nothing overtakes, nothing is dropped, and played streams leave time to others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from whisper_stream.server.metrics import Metrics
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.identity import StreamIdentity, hash_token
from whisper_stream.server.stream.outbox import Outbox, SendQueue
from whisper_stream.server.stream.runner import (
    AHEAD_SECONDS,
    MOST_REST,
    SLICE_BYTES,
    StreamRunner,
    rest_seconds,
)
from whisper_stream.server.stream.stream import Stream
from whisper_stream.server.stream.stream_journal import StreamJournal
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.commands import Audio, EndOfStream, Flush
from whisper_stream.streamer.config import StreamConfig

from ...helpers.server_rig import ScriptedEngine, speech

Scenario = Callable[[StreamRunner, ScriptedEngine, SendQueue], Awaitable[None]]


def play(scenario: Scenario, capacity: int = 60 * 16_000) -> list[wire.ServerMessage]:
    """Run a scenario with one stream, to the end of what it says."""

    async def run() -> list[wire.ServerMessage]:
        engine = ScriptedEngine(capacity=capacity)
        config, queue = StreamConfig(), SendQueue()
        runner = StreamRunner(
            StreamIdentity("s", hash_token("token")),
            wire.Start(),
            Stream(engine.new_session(config), PcmIngest("s16le", 16_000, 1), config),
            Outbox(queue),
            StreamJournal(None, "s", 0.0),
            engine,
            Metrics(),
            None,
            elapsed=0.0,
            others=lambda: 0,
            on_end=lambda ended: None,
        )
        runner.run()
        messages = []
        try:
            async with asyncio.timeout(20):
                await scenario(runner, engine, queue)
                while (message := await queue.get()) is not None:
                    messages.append(message)
        finally:
            await runner.abort()
            engine.close()
        return messages

    return asyncio.run(run())


def kinds(messages: list[wire.ServerMessage], *wanted: type) -> list[type]:
    return [type(message) for message in messages if isinstance(message, wanted)]


def test_a_large_frame_waits_for_room_and_nothing_of_it_is_dropped() -> None:
    audio = speech(7.0)

    async def scenario(runner: StreamRunner, engine: ScriptedEngine, queue: SendQueue) -> None:
        await runner.feed(Audio(data=audio))
        await runner.feed(EndOfStream())

    assert len(audio) > 4 * SLICE_BYTES
    done = play(scenario, capacity=16_000)[-1]
    assert isinstance(done, wire.Done) and done.samples == len(audio) // 2


def test_a_flush_does_not_overtake_audio_that_a_lost_connection_left_waiting() -> None:
    async def scenario(runner: StreamRunner, engine: ScriptedEngine, queue: SendQueue) -> None:
        engine.gate.clear()
        lost = asyncio.create_task(runner.feed(Audio(data=speech(0.512))))
        await asyncio.sleep(0)
        assert runner.seconds_in == 0.512
        lost.cancel()  # its connection was superseded while the audio waited for room
        flush = asyncio.create_task(runner.feed(Flush(id="f")))
        await asyncio.sleep(0)
        assert runner.ack.controls == 0
        engine.gate.set()
        await flush
        await runner.feed(EndOfStream())

    messages = play(scenario, capacity=8_000)
    flushed = next(message for message in messages if isinstance(message, wire.Flushed))
    assert flushed.time == 0.512


def test_what_comes_after_the_end_is_ignored() -> None:
    async def scenario(runner: StreamRunner, engine: ScriptedEngine, queue: SendQueue) -> None:
        await runner.feed(Audio(data=speech(1.0)))
        for late in (EndOfStream(), Audio(data=speech(1.0)), Flush(id="late"), EndOfStream()):
            await runner.feed(late)

    messages = play(scenario)
    done = messages[-1]
    assert isinstance(done, wire.Done) and done.samples == 16_000
    ack = messages[-2]
    assert isinstance(ack, wire.Ack) and (ack.bytes, ack.controls) == (32_000, 1)
    assert kinds(messages, wire.Flushed) == []


def test_a_played_stream_leaves_each_other_one_as_much_time_as_it_took() -> None:
    ahead = 2 * AHEAD_SECONDS
    assert rest_seconds(ahead, took=2.0, others=3) == 6.0
    assert rest_seconds(ahead, took=2.0, others=100) == MOST_REST


def test_alone_or_at_the_pace_of_speech_no_stream_rests() -> None:
    assert rest_seconds(2 * AHEAD_SECONDS, took=2.0, others=0) == 0.0
    assert rest_seconds(AHEAD_SECONDS / 2, took=2.0, others=3) == 0.0
