"""The daemon on real sockets: streams apart from each other, under pressure, and at its end."""

from __future__ import annotations

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from whisper_stream import __version__
from whisper_stream.server.protocol import messages as wire
from whisper_stream.server.protocol.errors import ErrorCode
from whisper_stream.streamer.engine.engine import EngineStatistics

from ...helpers.server_rig import STEP, Daemon, ScriptedEngine, daemon, speech
from ...helpers.stream_rig import (
    EXPLODE,
    JSON,
    errors,
    lasting,
    numbered,
    spoil,
    transcript,
    whole_stream,
)

BOTH = pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with daemon(ScriptedEngine(spoil=spoil), idle_timeout=60.0) as running:
        yield running


def health(running: Daemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.http}/healthz") as answer:
        body: dict[str, Any] = json.load(answer)
    return body


@BOTH
def test_a_stream_is_answered_completely(shared: Daemon, subprotocol: str) -> None:
    messages = whole_stream(shared, subprotocol, speech(2.2))
    assert numbered(messages)
    ready, done = messages[0], messages[-1]
    assert isinstance(ready, wire.Ready)
    assert (ready.model, ready.sample_rate, ready.channels) == ("scripted", 16_000, 1)
    assert done == wire.Done(seq=done.seq, duration=2.2, samples=35_200, words=5)
    ack = messages[-2]
    assert ack == wire.Ack(seq=done.seq - 1, samples=35_200, bytes=70_400, controls=1)
    segments = [m for m in messages if isinstance(m, wire.Segment)]
    assert [s.text for s in segments] == [transcript(messages)]
    assert segments[0].words[1].start == 0.5 and segments[0].end == 2.2


@pytest.mark.parametrize("path", ["/v1/stream", "/"])
def test_no_subprotocol_means_json(shared: Daemon, path: str) -> None:
    url = f"ws://127.0.0.1:{shared.port}{path}"
    with shared.connect(None, url=url) as peer:
        peer.send(wire.Start(), wire.Eos())
        assert isinstance(peer.rest()[0][-1], wire.Done)


def test_unknown_subprotocols_are_refused_in_words(shared: Daemon) -> None:
    with pytest.raises(InvalidStatus) as caught, shared.connect("soap"):
        pass
    assert caught.value.response.status_code == 400
    assert wire.JSON_SUBPROTOCOL in caught.value.response.body.decode()


def test_any_chunking_gives_the_same_text(shared: Daemon) -> None:
    audio = speech(1.7, seed=3)
    expected = lasting(whole_stream(shared, JSON, audio))
    cuts = np.random.default_rng(1).integers(0, len(audio), 40)
    with shared.connect() as peer:
        peer.send(wire.Start())
        edges = [0, *sorted(int(cut) for cut in cuts), len(audio)]
        for start, end in zip(edges, edges[1:], strict=False):
            peer.audio(audio[start:end])
        peer.send(wire.Eos())
        messages = peer.rest()[0]
    notices = [m for m in messages if isinstance(m, wire.Warning)]
    assert [m.code for m in notices] == ["odd_bytes"]
    assert [m for m in lasting(messages) if not isinstance(m, wire.Warning)] == expected


def test_other_rates_and_stereo_count_in_the_client_s_samples(shared: Daemon) -> None:
    with shared.connect() as peer:
        peer.send(wire.Start(sample_rate=48_000, channels=2, encoding="f32le"))
        peer.audio(np.zeros((48_000, 2), "<f4").tobytes())
        peer.send(wire.Eos())
        done = peer.rest()[0][-1]
    assert done == wire.Done(seq=done.seq, duration=1.0, samples=48_000, words=2)


@BOTH
def test_flush_and_ping_are_answered_in_the_stream(shared: Daemon, subprotocol: str) -> None:
    with shared.connect(subprotocol) as peer:
        peer.send(wire.Start(language="de"))
        peer.audio(speech(0.2))
        peer.send(wire.Flush(id="ü"))
        flushed = peer.until(wire.Flushed)
        assert transcript(flushed)
        assert flushed[-1] == wire.Flushed(seq=flushed[-1].seq, id="ü", time=0.2)
        peer.send(wire.Ping(id="p"))
        pong = peer.until(wire.Pong)[-1]
        assert isinstance(pong, wire.Pong) and pong.id == "p"
        peer.send(wire.Eos())
        segment = next(m for m in peer.rest()[0] if isinstance(m, wire.Segment))
    assert segment.language == "de"


def test_nothing_said_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="whisper_stream")
    engine = ScriptedEngine(word_text=lambda job: " mellon", spoil=spoil)
    with daemon(engine) as running, running.connect() as peer:
        peer.send(wire.Start(prompt="password"))
        peer.audio(speech(0.5) + EXPLODE)
        peer.send(wire.Flush(id="id-of-flush"), wire.Eos())
        assert "mellon" in transcript(peer.rest()[0])
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "event=stream_opened" in text and "event=job_failed" in text
    for secret in ("mellon", "password", "id-of-flush", "this text"):
        assert secret not in text


def test_a_client_that_vanishes_is_forgotten() -> None:
    engine = ScriptedEngine()
    with daemon(engine) as running:
        engine.gate.clear()
        with running.connect() as peer:
            peer.send(wire.Start())
            peer.audio(speech(5.0))
            peer.until(wire.Ready)
            peer.socket.socket.shutdown(socket.SHUT_RDWR)
        while health(running)["streams"]:
            pass  # each look is a round trip through the server's loop
        engine.gate.set()
        running.stop()
        running.thread.join(20)
        assert not running.thread.is_alive()
    assert engine.jobs <= 1  # the one that had begun


def test_audio_waits_for_room_and_none_is_lost() -> None:
    engine = ScriptedEngine(capacity=2 * STEP)
    audio = speech(20.0)
    with daemon(engine) as running:
        expected = transcript(whole_stream(running, JSON, audio))
        engine.gate.clear()
        with running.connect() as peer:
            peer.send(wire.Start())
            for start in range(0, len(audio), 3_000):
                peer.audio(audio[start : start + 3_000])
            peer.send(wire.Eos())
            peer.until(wire.Ready)
            engine.gate.set()
            assert transcript(peer.rest()[0]) == expected
    assert len(expected) == 40 * 9
    assert all(session.most_held <= 2 * STEP for session in engine.sessions)


def test_a_stuck_stream_stops_reading_its_socket() -> None:
    """Backpressure reaches the client: it cannot send without bound."""
    engine = ScriptedEngine(capacity=2 * STEP)
    with daemon(engine) as running:
        engine.gate.clear()
        with running.connect() as peer:
            peer.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
            peer.send(wire.Start())
            peer.until(wire.Ready)
            sent = threading.Event()

            def send() -> None:
                for _ in range(12):
                    peer.audio(bytes(1_000_000))
                sent.set()

            sender = threading.Thread(target=send)
            sender.start()
            # While it is stuck, others are answered, often enough to have read all twelve frames.
            with running.connect() as other:
                other.send(wire.Start())
                for _ in range(200):
                    other.send(wire.Ping(id="x"))
                    other.until(wire.Pong)
            assert not sent.is_set()
            assert engine.sessions[0].most_held <= 2 * STEP
            engine.gate.set()
            sender.join(60)
            peer.send(wire.Eos())
            done = peer.until(wire.Done)[-1]
    assert isinstance(done, wire.Done) and done.samples == 6_000_000


def test_a_slow_reader_gets_every_word_and_only_the_newest_partials() -> None:
    long_word = " " + "x" * 40_000  # more of them than the sockets between can hold
    all_decoded = threading.Event()
    engine = ScriptedEngine(
        word_text=lambda job: long_word,
        spoil=lambda job: all_decoded.set() if engine.jobs == 240 else None,
    )
    with daemon(engine) as running:
        with running.connect(max_queue=1) as slow:
            slow.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            slow.send(wire.Start())
            slow.audio(speech(60.0))
            slow.audio(speech(60.0))
            assert all_decoded.wait(60)
            # Nothing was read; another stream is served to its end.
            assert isinstance(whole_stream(running, JSON, speech(1.0))[-1], wire.Done)
            slow.send(wire.Eos())
            messages = slow.rest()[0]
    commits = [m for m in messages if isinstance(m, wire.Commit)]
    partials = [m for m in messages if isinstance(m, wire.Partial)]
    assert len(commits) == 240
    assert 0 < len(partials) < 240
    assert numbered(messages)


def test_a_silent_client_is_told_and_closed() -> None:
    with daemon(idle_timeout=0.05) as running, running.connect() as peer:
        messages, code, _ = peer.rest()
    assert errors(messages) == [("idle_timeout", True)] and code == 1008


def test_more_streams_than_allowed_are_turned_away_in_words() -> None:
    with daemon(max_streams=1) as running, running.connect() as first:
        first.send(wire.Start())
        first.until(wire.Ready)
        for subprotocol in wire.SUBPROTOCOLS:
            with running.connect(subprotocol) as second:
                second.send(wire.Start())
                messages, code, _ = second.rest()
            assert errors(messages) == [(ErrorCode.TOO_MANY_STREAMS, True)] and code == 1013
        first.send(wire.Eos())
        assert isinstance(first.rest()[0][-1], wire.Done)


def test_a_graceful_stop_delivers_the_last_words() -> None:
    engine = ScriptedEngine()
    with daemon(engine) as running, running.connect() as peer, running.connect() as waiting:
        engine.gate.clear()
        peer.send(wire.Start())
        peer.audio(speech(1.2))
        peer.until(wire.Ready)
        while engine.sessions[0].most_held < 19_200:  # all of it has arrived
            peer.send(wire.Ping())
            peer.until(wire.Pong)
        running.stop()
        peer_told = peer.until(wire.Warning)[-1]
        assert isinstance(peer_told, wire.Warning) and peer_told.code == "shutting_down"
        with pytest.raises(InvalidStatus) as refused, running.connect():
            pass
        assert refused.value.response.status_code == 503
        engine.gate.set()
        messages, code, reason = peer.rest()
        assert (code, reason) == (1012, "shutting_down")
        done = messages[-1]
        assert isinstance(done, wire.Done) and (done.words, done.samples) == (3, 19_200)
        warning = waiting.rest()
        assert [type(m) for m in warning[0]] == [wire.Warning] and warning[1] == 1012


def test_a_stop_does_not_wait_for_ever() -> None:
    engine = ScriptedEngine()
    with daemon(engine, drain_seconds=0.1) as running, running.connect() as peer:
        engine.gate.clear()
        peer.send(wire.Start())
        peer.audio(speech(1.0))
        peer.until(wire.Ready)
        running.stop()
        assert peer.rest()[1] == 1012
        running.thread.join(20)
        assert not running.thread.is_alive()


def test_health_and_hint_over_http(shared: Daemon) -> None:
    body = health(shared)
    assert body["status"] == "ok" and body["version"] == __version__
    assert body["model"] == "scripted" and body["streams"] == 0
    assert set(body["engine"]) == set(EngineStatistics._fields)
    with urllib.request.urlopen(shared.http) as answer:
        assert wire.STREAM_PATH in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{shared.http}/nothing")
