"""Logs of a running daemon: nothing of what was said, and no secret."""

from __future__ import annotations

import urllib.request

import pytest
from whisper_stream.server.protocol import messages as wire

from ...helpers.server_rig import ScriptedEngine, daemon, speech


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
