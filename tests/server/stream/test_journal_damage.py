"""A damaged journal: refused in one sentence, or less of it used; never a crash, never another transcript."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from whisper_stream.server.errors import JournalError
from whisper_stream.server.protocol.messages import Start
from whisper_stream.server.stream.journal import Journal
from whisper_stream.server.stream.outbox import Mailbox
from whisper_stream.server.stream.recording import Recording
from whisper_stream.server.stream.restoring import restored, row_of
from whisper_stream.server.stream.runner import say
from whisper_stream.server.stream.stream import LiveStream, StreamJournal
from whisper_stream.streamer.audio.ingest import PcmIngest
from whisper_stream.streamer.config import StreamConfig

from ...helpers.scripted import FakeDecoder, make_session, pcm16, scripted

CONFIG = StreamConfig(language="en")
State = tuple[list[bytes], tuple[str, ...]]  # closed segments, and the words after them


@dataclass
class Written:
    """A journal as a killed daemon leaves it, and what its streams had said after every command."""

    folder: Path
    states: dict[str, list[State]] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)  # number of the last message


def live_stream(
    journal: Journal, stream_id: str, token_hash: bytes, config: StreamConfig, mailbox: Mailbox
) -> LiveStream:
    mailbox.keep = True
    return LiveStream(
        stream_id=stream_id,
        token_hash=token_hash,
        start=Start(resume=True),
        config=config,
        recording=Recording(make_session(config), PcmIngest("s16le", 16_000, 1)),
        mailbox=mailbox,
        journal=StreamJournal(journal, stream_id, mailbox, 1e9),
        on_end=lambda stream: None,
    )


def state(stream: LiveStream) -> State:
    words = tuple(word.text for word in stream.mailbox.snapshot(()).words)
    return list(stream.segments), words


async def speak(journal: Journal, written: Written, name: str, first_word: int) -> None:
    """One stream, open at the end, in several transactions."""
    mailbox = Mailbox()
    stream = live_stream(journal, name, b"hash", CONFIG, mailbox)
    recording = Recording(make_session(CONFIG), PcmIngest("s16le", 16_000, 1))
    recording.record = stream.journal.record
    journal.open_stream(row_of(stream, "tiny.en"))
    states = written.states.setdefault(name, [state(stream)])

    def keep(segment: object) -> None:
        stream._keep(segment)  # type: ignore[arg-type]

    decode, now = FakeDecoder(), 0.0
    data = pcm16(scripted(([0.1] * 5 + [1.5]) * 4, first_word=first_word).audio)
    for at in range(0, len(data), 9_600):
        say(recording.push(data[at : at + 9_600]), recording, mailbox, keep)
        states.append(state(stream))
        now += 0.3
        while (job := recording.next_job(now)) is not None:
            states.append(state(stream))
            say(recording.finish_job(decode(job), now), recording, mailbox, keep)
            states.append(state(stream))
        if at % 5 == 0:
            await stream.journal.durable()
    await stream.journal.durable()
    written.sent[name] = mailbox.seq


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


def recover(path: Path, written: Written) -> dict[str, LiveStream]:
    """What the next daemon makes of it; each stream must be as it was at some time."""
    found: dict[str, LiveStream] = {}
    with closing(Journal(path)) as journal:
        for row in journal.streams():

            def make(
                stream_id: str, token_hash: bytes, start: Start, config: StreamConfig, box: Mailbox
            ) -> LiveStream:
                return live_stream(journal, stream_id, token_hash, config, box)

            segments, _ = written.states[row.id][-1]
            try:
                kept = journal.segments(row.id)
                assert kept == segments[: len(kept)]
                stream = restored(row, journal, "tiny.en", make)
            except JournalError as error:
                assert "\n" not in str(error) and str(error)
                continue
            found[row.id] = stream
            assert state(stream) == written.states[row.id][stream.journal.number]
    return found


def test_an_undamaged_one_is_all_there(written: Written, tmp_path: Path) -> None:
    for name in ("j", "j-wal"):
        shutil.copy(written.folder / name, tmp_path / name)
    found = recover(tmp_path / "j", written)
    assert set(found) == {"a", "b", "a2"}
    for name, stream in found.items():
        assert state(stream) == written.states[name][-1] and state(stream)[0]
        assert stream.mailbox.seq >= written.sent[name]


def test_a_lost_end_is_noticed(written: Written, tmp_path: Path) -> None:
    for name in ("j", "j-wal"):
        shutil.copy(written.folder / name, tmp_path / name)
    log = tmp_path / "j-wal"
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 4])
    found = recover(tmp_path / "j", written)
    assert state(found["a"]) == written.states["a"][-1]
    assert 0 < found["b"].journal.number < len(written.states["b"]) - 1
    assert found["b"].mailbox.seq < written.sent["b"]


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
        if stream.mailbox.seq >= written.sent[name]:
            assert state(stream) == written.states[name][-1]
