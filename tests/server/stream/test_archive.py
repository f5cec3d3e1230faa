"""Transcripts of ended streams: in memory and in the journal, bounded in time and number."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

from whisper_stream.server.config import ServerConfig
from whisper_stream.server.stream.archive import Archive
from whisper_stream.server.stream.journal import Journal, StreamRow


def row(name: str, done: int = 0) -> StreamRow:
    return StreamRow(name, b"hash", "tiny.en", b"start", b"config", done=done)


def at(path: Path, now: float) -> Journal:
    return Journal(path, lambda: now)


def test_retention_is_bounded_in_time_and_number(tmp_path: Path) -> None:
    config = ServerConfig(retain_seconds=100, retain_sessions=3)
    for age, names in ((500.0, "ab"), (50.0, "cdefg")):
        with closing(at(tmp_path / "j", 1000.0 - age)) as opened:
            for name in names:
                opened.open_stream(row(name, done=1))
    with closing(at(tmp_path / "j", 1000.0)) as opened:
        opened.open_stream(row("open"))
        asyncio.run(opened.durable("open"))
        Archive(opened, config, lambda: 0.0).sweep_journal()
    with closing(at(tmp_path / "j", 1000.0)) as opened:
        left = {each.id for each in opened.streams()}
    assert "open" in left and len(left) == 4 and left <= set("cdefg") | {"open"}


def test_transcripts_in_memory_are_bounded_too() -> None:
    now = [0.0]
    config = ServerConfig(retain_seconds=10, retain_sessions=2)
    archive = Archive(None, config, lambda: now[0])
    for name in "abc":
        archive.keep(name, b"hash", [name.encode()])
    assert archive.find("a") is None and len(archive) == 2
    found = archive.find("c")
    assert found is not None and found.segments == [b"c"]
    now[0] = 10.0
    assert archive.find("c") is None and len(archive) == 0
