"""The journal's file: order, deletion, damage, a full disk."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from whisper_stream.server.errors import JournalError
from whisper_stream.server.stream.journal import CommandRow, Journal, StreamRow


@contextmanager
def journal(path: Path, now: float = 1000.0) -> Iterator[Journal]:
    with closing(Journal(path, lambda: now)) as opened:
        yield opened


def row(name: str, done: int = 0) -> StreamRow:
    return StreamRow(name, b"hash", "tiny.en", b"start", b"config", done=done)


def command(number: int, body: bytes, seq: int = 0) -> CommandRow:
    return CommandRow(number, seq, number / 2, body)


def test_what_is_durable_is_there_for_the_next_daemon(tmp_path: Path) -> None:
    async def write() -> None:
        with journal(tmp_path / "j") as first:
            first.open_stream(row("a"))
            for number in range(50):
                first.command("a", command(number, bytes([number]), number + 7))
            first.segment("a", 1, b"one")
            await first.durable("a")
            with journal(tmp_path / "j") as second:  # the first has not been closed
                assert second.streams() == [row("a")._replace(opened=1000.0, touched=1000.0)]
                expected = [command(number, bytes([number]), number + 7) for number in range(50)]
                assert list(second.commands("a")) == expected
                assert second.segments("a") == [b"one"]

    asyncio.run(write())


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    with journal(tmp_path / "j"):
        assert stat.S_IMODE((tmp_path / "j").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "j-wal").stat().st_mode) == 0o600


def test_a_finished_stream_keeps_only_its_text(tmp_path: Path) -> None:
    with journal(tmp_path / "j") as opened:
        opened.open_stream(row("a"))
        opened.command("a", command(0, b"audio"))
        opened.segment("a", 1, b"one")
        opened.finish_stream("a")
    with journal(tmp_path / "j") as opened:
        assert list(opened.commands("a")) == [] and opened.segments("a") == [b"one"]
        found = opened.stream("a")
        assert found is not None and found.done
        opened.delete_stream("a")
    with journal(tmp_path / "j") as opened:
        assert opened.streams() == [] and opened.segments("a") == []


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + bytes(5000)]
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(JournalError, match="--journal .* cannot be used"):
        Journal(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == content  # nothing is overwritten


@pytest.mark.parametrize("version", [1, 2, 99])
def test_another_version_is_refused_in_one_sentence(tmp_path: Path, version: int) -> None:
    with closing(sqlite3.connect(tmp_path / "j")) as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(JournalError, match=f"version {version}; this daemon writes 3") as refused:
        Journal(tmp_path / "j")
    assert "\n" not in str(refused.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be used"):
        Journal(tmp_path / "no" / "j")


def test_a_write_that_fails_is_told_to_its_stream_only(tmp_path: Path) -> None:
    async def scenario() -> None:
        with journal(tmp_path / "j") as opened:
            opened.command("a", command(0, b"x"))
            await opened.durable("a")
            opened.command(
                "a", command(0, b"again")
            )  # breaks the key, as a full disk would the write
            with pytest.raises(JournalError, match="could not be written"):
                await opened.durable("a")
            opened.command("b", command(0, b"y"))
            await opened.durable("b")
            assert len(list(opened.commands("b"))) == 1

    asyncio.run(scenario())
