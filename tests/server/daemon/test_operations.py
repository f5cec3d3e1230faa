"""Readiness, metrics and logs of a running daemon."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from whisper_stream.server.metrics import Histogram, Metrics
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.stream.journal import Journal
from whisper_stream.streamer.jobs import DecodeJob

from ...helpers.server_rig import Daemon, ScriptedEngine, daemon, full_disk, speech


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


def values(text: str) -> dict[str, float]:
    """Every sample by its name with labels; each line must have the form of the text format."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            assert re.fullmatch(r"# TYPE [a-z_]+ (counter|gauge|histogram)", line)
            continue
        match = re.fullmatch(r'([a-z_]+(?:\{[a-z]+="[^"]*"\})?) (\S+)', line)
        assert match, line
        found[match[1]] = float(match[2])
    return found


def test_metrics_count_what_happens() -> None:
    with daemon(max_streams=1) as running, running.connect() as peer:
        peer.send(wire.Start())
        peer.until(wire.Ready)
        with running.connect() as second:
            second.send(wire.Start())
            second.rest()
        before = values(get(running, "/metrics"))
        peer.audio(speech(2.0))
        peer.send(wire.Eos())
        peer.rest()
        after = values(get(running, "/metrics"))
    prefix = "whisper_stream_"
    assert before[f"{prefix}streams"] == 1
    assert after[f"{prefix}streams_opened_total"] == 1
    assert after[f'{prefix}refusals_total{{reason="too_many_streams"}}'] == 1
    assert after[f'{prefix}errors_total{{kind="too_many_streams"}}'] == 1
    assert after[f"{prefix}audio_seconds_total"] == 2
    assert after[f"{prefix}commit_delay_seconds_count"] == 4
    assert after[f"{prefix}decode_seconds_count"] == 4
    assert after[f"{prefix}engine_jobs"] == 4


def test_histograms_add_up() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.lines("h") == [
        'h_bucket{le="1"} 2',
        'h_bucket{le="2"} 3',
        'h_bucket{le="+Inf"} 4',
        "h_sum 12.000000",
        "h_count 4",
    ]
    assert values(Metrics().text({"streams": 0.0}))["whisper_stream_streams"] == 0


def test_with_keys_metrics_want_one(tmp_path: object) -> None:
    path = f"{tmp_path}/keys"
    with open(path, "w") as file:
        file.write("anna:0123456789abcdef\n")
    with daemon(api_keys=path) as running:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            get(running, "/metrics")
        assert "whisper_stream_streams 0" in get(running, "/metrics?key=0123456789abcdef")


def test_a_full_run_logs_no_text_no_prompt_no_token(
    tmp_path: object, caplog: pytest.LogCaptureFixture
) -> None:
    """At the lowest level, with a journal, a reader, mistakes, a resumed and a deleted session."""
    caplog.set_level("DEBUG")
    engine = ScriptedEngine(word_text=lambda job: " mellon")
    with daemon(engine, journal=f"{tmp_path}/journal") as running:
        with running.connect() as peer:
            peer.send(wire.Start(resume=True, prompt="password"))
            ready = peer.receive()
            assert isinstance(ready, wire.Ready)
            with running.connect(url=f"ws://127.0.0.1:{running.port}{ready.watch}") as reader:
                reader.receive()
            peer.audio(speech(1.0))
            peer.send(wire.Config(prompt="swordfish"), wire.Flush(id="flush-id"))
            peer.socket.send('{"type":"sing","words":"shibboleth"}')
            peer.until(wire.Flushed)
        with running.connect() as peer:
            peer.send(wire.Resume(session=ready.session, token=ready.token, seq=1))
            peer.until(wire.Resumed)
            peer.send(wire.Eos())
            peer.rest()
        address = f"{running.http}/v1/sessions/{ready.session}"
        with urllib.request.urlopen(f"{address}.txt?token={ready.token}") as answer:
            assert b"mellon" in answer.read()
        request = urllib.request.Request(f"{address}?token={ready.token}", method="DELETE")
        urllib.request.urlopen(request).close()
    logged = [r for r in caplog.records if r.name.startswith(("whisper_stream", "uvicorn"))]
    text = "\n".join(record.getMessage() for record in logged)
    assert "event=stream_opened" in text and "event=stream_resumed" in text
    key = ready.watch.partition("key=")[2]
    for secret in ("mellon", "password", "swordfish", "flush-id", "shibboleth", ready.token, key):
        assert secret not in text
