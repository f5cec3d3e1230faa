"""One stream's part of the journal: its limit, and what it does where there is no journal."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from whisper_stream.server.protocol.messages import Partial
from whisper_stream.server.stream.journal import Journal, StreamRow
from whisper_stream.server.stream.stream import Stream
from whisper_stream.server.stream.stream_journal import StreamJournal
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.commands import Audio, Command, Flush, JobDone, JobStarted
from whisper_stream.streamer.config import StreamConfig

from ...helpers.scripted import FakeDecoder, make_session, pcm16, scripted

CONFIG = StreamConfig(language="en")


def fresh() -> Stream:
    return Stream(make_session(CONFIG), PcmIngest("s16le", 16_000, 1), CONFIG)


def test_a_stream_too_long_for_it_is_told_so_once_and_leaves_it(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "j")) as opened:
        opened.open_stream(StreamRow("a", b"hash", "tiny.en", b"start", b"config"))
        stream = StreamJournal(opened, "a", limit=100)
        told = [stream.record(Flush(id="x" * 40), 0.0, 0) for _ in range(4)]
    assert told == [True, False, True, True] and not stream.active and not stream.finish()
    with closing(Journal(tmp_path / "j")) as opened:
        assert list(opened.commands("a")) == []


def test_without_a_journal_nothing_is_waited_for() -> None:
    stream = StreamJournal(None, "a", limit=0)
    assert stream.record(Flush(), 0.0, 0) and not stream.active

    async def wait() -> None:
        await stream.throttle()
        await stream.durable(7)

    asyncio.run(wait())


def test_a_replay_says_all_again_but_for_partials_that_were_replaced(tmp_path: Path) -> None:
    decode, stream, said = FakeDecoder(), fresh(), []
    with closing(Journal(tmp_path / "j")) as opened:
        opened.open_stream(StreamRow("a", b"hash", "tiny.en", b"start", b"config"))
        journal = StreamJournal(opened, "a", limit=1e9)

        def apply(command: Command, now: float) -> None:
            said.append(stream.apply(command, now))
            journal.record(command, now, seq=len(said))

        data = pcm16(scripted([0.1] * 12).audio)
        for at in range(0, len(data), 9_600):
            apply(Audio(data=data[at : at + 9_600]), now=at / 32_000)
            job = stream.next_job(at / 32_000)
            if job is not None:
                said.append([])
                journal.record(JobStarted(samples=len(job.audio)), at / 32_000, seq=len(said))
                apply(JobDone(result=decode(job)), now=at / 32_000)
        asyncio.run(journal.durable(seq=0))
        again = fresh()
        replayed = StreamJournal(opened, "a", limit=1e9).replay(again)
    assert [each.seq for each in replayed] == list(range(1, len(said) + 1))
    assert again.ack() == stream.ack() and again.now == stream.now
    partials = [m for messages in said for m in messages if isinstance(m, Partial)]
    assert len(partials) > 3
    for messages, (_, _, once_more) in zip(said, replayed, strict=True):
        for message, repeated in zip(messages, once_more, strict=True):
            if isinstance(message, Partial) and message is not partials[-1]:
                assert repeated == Partial(text="", words=())
            else:
                assert repeated == message
