"""A damaged journal: refused in one sentence, or less of it used; never a crash, never another transcript."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from whisper_stream.server.errors import JournalError
from whisper_stream.server.protocol.messages import Segment, ServerMessage
from whisper_stream.server.stream.journal import Journal, StreamRow
from whisper_stream.server.stream.outbox import Outbox
from whisper_stream.server.stream.stream import Stream
from whisper_stream.server.stream.stream_journal import StreamJournal
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.commands import Audio, Command, JobDone, JobStarted
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.jobs import DecodeJob

from ...helpers.scripted import FakeDecoder, make_session, pcm16, scripted

CONFIG = StreamConfig(language="en")
State = tuple[list[bytes], tuple[str, ...]]  # closed segments, and the words after them


@dataclass
class Written:
    """A journal as a killed daemon leaves it, and what its streams had said after every command."""

    folder: Path
    states: dict[str, list[State]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)  # number of the last message


class Live:
    """What a daemon holds of one stream, driven without an event loop's help."""

    def __init__(self, journal: Journal, name: str) -> None:
        self.stream = Stream(make_session(CONFIG), PcmIngest("s16le", 16_000, 1), CONFIG)
        self.outbox = Outbox(keep=True)
        self.journal = StreamJournal(journal, name, 1e9)
        self.segments: list[bytes] = []

    def apply(self, command: Command, now: float) -> None:
        messages = self.stream.apply(command, now)
        self.journal.record(command, now, self.outbox.seq)
        for message in messages:
            self.publish(message)
            if isinstance(message, Segment):
                self.journal.keep(message)

    def next_job(self, now: float) -> DecodeJob | None:
        job = self.stream.next_job(now)
        if job is not None:
            self.journal.record(JobStarted(samples=len(job.audio)), now, self.outbox.seq)
        return job

    def replay(self, sent: int) -> None:
        for seq, _, messages in self.journal.replay(self.stream):
            self.outbox.seq = max(self.outbox.seq, seq)
            for message in messages:
                self.publish(message)
        self.outbox.seq = max(self.outbox.seq, sent)

    def publish(self, message: ServerMessage) -> None:
        self.outbox.publish(message)
        if isinstance(message, Segment):
            self.segments.append(msgspec.msgpack.encode(message))

    @property
    def state(self) -> State:
        return list(self.segments), tuple(word.text for word in self.outbox.snapshot(()).words)


async def speak(journal: Journal, written: Written, name: str, first_word: int) -> None:
    """One stream, open at the end, in several transactions."""
    live = Live(journal, name)
    journal.open_stream(StreamRow(name, b"hash", "tiny.en", b"start", b"config"))
    states = written.states.setdefault(name, [live.state])
    decode, now = FakeDecoder(), 0.0
    data = pcm16(scripted(([0.1] * 5 + [1.5]) * 4, first_word=first_word).audio)
    for at in range(0, len(data), 9_600):
        live.apply(Audio(data=data[at : at + 9_600]), now)
        states.append(live.state)
        now += 0.3
        while (job := live.next_job(now)) is not None:
            states.append(live.state)
            live.apply(JobDone(result=decode(job)), now)
            states.append(live.state)
        if at % 5 == 0:
            await live.journal.durable(live.outbox.seq)
    await live.journal.durable(live.outbox.seq)
    written.sent[name] = live.outbox.seq


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Half of it is in the file itself, half in its log."""
    folder = tmp_path_factory.mktemp("killed")
    result = Written(folder)

    async def write() -> None:
        alive = folder / "alive"
        with closing(Journal(alive)) as journal:
            await speak(journal, result, "a", 0)
            with closing(sqlite3.connect(alive)) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            await speak(journal, result, "b", 200)
            await speak(journal, result, "a2", 400)
            shutil.copy(alive, folder / "j")
            shutil.copy(f"{alive}-wal", folder / "j-wal")

    asyncio.run(write())
    assert (folder / "j").stat().st_size > 100_000 < (folder / "j-wal").stat().st_size
    return result


def recover(path: Path, written: Written) -> dict[str, Live]:
    """What the next daemon makes of it; each stream must be as it was at some time."""
    found: dict[str, Live] = {}
    with closing(Journal(path)) as journal:
        for row in journal.streams():
            live = Live(journal, row.id)
            segments, _ = written.states[row.id][-1]
            try:
                kept = journal.segments(row.id)
                assert kept == segments[: len(kept)]
                live.replay(row.sent)
            except JournalError as error:
                assert "\n" not in str(error) and str(error)
                continue
            found[row.id] = live
            assert live.state == written.states[row.id][live.journal.number]
    return found


def test_an_undamaged_one_is_all_there(written: Written, tmp_path: Path) -> None:
    for name in ("j", "j-wal"):
        shutil.copy(written.folder / name, tmp_path / name)
    found = recover(tmp_path / "j", written)
    assert set(found) == {"a", "b", "a2"}
    for name, stream in found.items():
        assert stream.state == written.states[name][-1] and stream.state[0]
        assert stream.outbox.seq >= written.sent[name]


def test_a_lost_end_is_noticed(written: Written, tmp_path: Path) -> None:
    for name in ("j", "j-wal"):
        shutil.copy(written.folder / name, tmp_path / name)
    log = tmp_path / "j-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 4])
    found = recover(tmp_path / "j", written)
    assert found["a"].state == written.states["a"][-1]
    assert 0 < found["b"].journal.number < len(written.states["b"]) - 1
    assert found["b"].outbox.seq < written.sent["b"]


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    victim=st.sampled_from(["j", "j-wal"]),
    place=st.floats(0.0, 1.0),
    damage=st.sampled_from(["cut", "cut", "garbage", "flip", "zeros", "delete"]),
    length=st.sampled_from([1, 30, 5_000]),
)
@example(victim="j-wal", place=0.0, damage="delete", length=1)
@example(victim="j-wal", place=0.0, damage="cut", length=1)
@example(victim="j", place=0.0, damage="delete", length=1)
@example(victim="j", place=0.0, damage="cut", length=1)
def test_whatever_the_damage_nothing_else_is_said(
    written: Written,
    tmp_path_factory: pytest.TempPathFactory,
    victim: str,
    place: float,
    damage: str,
    length: int,
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    for name in ("j", "j-wal"):
        shutil.copy(written.folder / name, folder / name)
    content = bytearray((folder / victim).read_bytes())
    at = round(place * (len(content) - 1))
    match damage:
        case "cut":
            del content[at:]
        case "garbage":
            content[at : at + length] = bytes(n * 77 % 256 for n in range(length))
        case "flip":
            content[at] ^= 1 << length % 8
        case "zeros":
            content[at : at + length] = bytes(length)
    (folder / victim).write_bytes(content)
    if damage == "delete":
        (folder / victim).unlink()
    try:
        found = recover(folder / "j", written)
    except JournalError as error:
        assert "\n" not in str(error)
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, stream in found.items():
        # whoever has seen the last message either finds all of the stream, or is refused
        if stream.outbox.seq >= written.sent[name]:
            assert stream.state == written.states[name][-1]
