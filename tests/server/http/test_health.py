"""``/healthz`` and ``/readyz`` of a running daemon."""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.journal import Journal
from whisper_stream.streamer.jobs import DecodeJob

from ...helpers.server_rig import Daemon, ScriptedEngine, daemon, full_disk


def get(running: Daemon, path: str) -> str:
    with urllib.request.urlopen(running.http + path) as answer:
        text: str = answer.read().decode()
    return text


def test_ready_means_that_a_decode_has_succeeded() -> None:
    engine = ScriptedEngine()
    with daemon(engine) as running:
        assert get(running, "/readyz") == "ready\n"
        assert get(running, "/readyz") == "ready\n"
        assert engine.jobs == 1  # the second look believed the first


def test_a_daemon_that_cannot_decode_is_alive_but_not_ready() -> None:
    def fail(job: DecodeJob) -> None:
        raise MemoryError("out of memory")

    with daemon(ScriptedEngine(spoil=fail)) as running:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            get(running, "/readyz")
        assert '"ok"' in get(running, "/healthz")


def test_a_daemon_that_cannot_write_its_journal_is_not_ready(tmp_path: Path) -> None:
    """The disk is full for a while: a stream is told, /readyz says so at once, and later all is well."""
    path = tmp_path / "journal"
    with daemon(journal=str(path)) as running:
        assert get(running, "/readyz") == "ready\n"
        with full_disk(path, "streams"):
            assert get(running, "/readyz") == "ready\n"  # that was so a moment ago
            with running.connect() as peer:
                peer.send(wire.Start(resume=True))
                assert peer.rest()[1:] == (1011, "journal_failed")
            with pytest.raises(urllib.error.HTTPError, match="503") as caught:
                get(running, "/readyz")
            assert b"disk is full" in caught.value.read()
        assert get(running, "/readyz") == "ready\n"
        with closing(Journal(path)) as journal:  # it leaves no trace
            assert not [row for row in journal.streams() if row.id.startswith("probe")]
