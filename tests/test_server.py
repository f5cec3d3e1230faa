"""The daemon on real sockets: streams apart from each other, under pressure, and at its end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol
from whisper_stream import __version__
from whisper_stream.model.audio import load_audio
from whisper_stream.server import wire
from whisper_stream.server.errors import ErrorCode
from whisper_stream.streamer.jobs import DecodeJob

from .server_rig import STEP, Daemon, Peer, ScriptedEngine, daemon, speech

BOTH = pytest.mark.parametrize("subprotocol", wire.SUBPROTOCOLS)
JSON, MSGPACK = wire.SUBPROTOCOLS
POISON = 30_000  # a sample value that makes the scripted engine misbehave
EXPLODE = bytes([0x30, 0x75]) * STEP  # half a second of it


def _spoil(job: DecodeJob) -> None:
    if round(float(job.audio[0]) * 32_768) == POISON:
        raise RuntimeError("this text must not reach a log or a client")


@pytest.fixture(scope="module")
def shared() -> Iterator[Daemon]:
    with daemon(ScriptedEngine(spoil=_spoil), idle_timeout=60.0) as running:
        yield running


def lasting(messages: list[wire.ServerMessage]) -> list[wire.ServerMessage]:
    """What must not depend on timing: no acks, no partials, no numbering, no session."""
    kept = [m for m in messages if not isinstance(m, (wire.Ack, wire.Partial, wire.Ready))]
    return [msgspec.structs.replace(m, seq=0) for m in kept]


def transcript(messages: list[wire.ServerMessage]) -> str:
    return "".join(m.text for m in messages if isinstance(m, wire.Commit))


def numbered(messages: list[wire.ServerMessage]) -> bool:
    """Whether ``seq`` grows; what a newer partial has replaced leaves a hole."""
    numbers = [m.seq for m in messages]
    return numbers[0] == 1 and numbers == sorted(set(numbers))


def errors(messages: list[wire.ServerMessage]) -> list[tuple[str, bool]]:
    return [(m.code, m.fatal) for m in messages if isinstance(m, wire.Error)]


def health(running: Daemon) -> dict[str, Any]:
    with urllib.request.urlopen(f"{running.http}/healthz") as answer:
        body: dict[str, Any] = json.load(answer)
    return body


def whole_stream(running: Daemon, subprotocol: str, audio: bytes) -> list[wire.ServerMessage]:
    with running.connect(subprotocol) as peer:
        peer.send(wire.Start())
        peer.audio(audio)
        peer.send(wire.Eos())
        messages, code, reason = peer.rest()
    assert (code, reason) == (1000, "done")
    return messages


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


# Each misbehaving peer returns the errors it was told, and its close code.
Misdeed = Callable[[Peer], tuple[list[tuple[str, bool]], int]]


def misdeed(*frames: str | bytes, start: bool = True, eos: bool = False) -> Misdeed:
    def act(peer: Peer) -> tuple[list[tuple[str, bool]], int]:
        if start:
            peer.send(wire.Start())
        for frame in frames:
            peer.socket.send(frame)
        if eos:
            peer.send(wire.Eos())
        messages, code, _ = peer.rest()
        return errors(messages), code

    return act


def _huge(peer: Peer) -> tuple[list[tuple[str, bool]], int]:
    peer.send(wire.Start())
    try:
        peer.socket.send(bytes(100_000_000))
    except ConnectionClosed:
        pass  # the server need not read it all
    messages, code, reason = peer.rest()
    assert "exceeds limit" in reason
    return errors(messages), code


def _packed(value: Any) -> bytes:
    frame: bytes = msgpack.packb(value)
    return frame


MISDEEDS: dict[str, tuple[str, Misdeed, list[tuple[str, bool]], int]] = {
    "audio before start": (
        JSON,
        misdeed(bytes(2), start=False),
        [("audio_before_start", True)],
        1008,
    ),
    "audio before start, msgpack": (
        MSGPACK,
        misdeed(_packed({"type": "audio", "data": b"\0\0"}), start=False),
        [("audio_before_start", True)],
        1008,
    ),
    "wrong encoding": (
        JSON,
        misdeed('{"type":"start","encoding":"adpcm"}', start=False),
        [("invalid_field", True)],
        1008,
    ),
    "wrong rate": (
        MSGPACK,
        misdeed(_packed({"type": "start", "sample_rate": 1}), start=False),
        [("invalid_field", True)],
        1008,
    ),
    "odd bytes": (JSON, misdeed(speech(0.5) + b"\0", eos=True), [("odd_bytes", False)], 1000),
    "unknown message": (
        JSON,
        misdeed('{"type":"sing"}', eos=True),
        [("unknown_message", False)],
        1000,
    ),
    "unknown message, msgpack": (
        MSGPACK,
        misdeed(_packed({"type": "sing"}), eos=True),
        [("unknown_message", False)],
        1000,
    ),
    "text for audio": (JSON, misdeed("UklGRiQAAAA="), [("text_frame", True)], 1003),
    "text on msgpack": (MSGPACK, misdeed("UklGRiQAAAA="), [("text_frame", True)], 1003),
    "raw audio on msgpack": (MSGPACK, misdeed(speech(0.1)), [("unreadable_frame", True)], 1003),
    "second start": (
        JSON,
        misdeed('{"type":"start"}', eos=True),
        [("already_started", False)],
        1000,
    ),
    "100 MB frame": (JSON, _huge, [], 1009),
    "100 MB frame, msgpack": (MSGPACK, _huge, [], 1009),
}


@pytest.mark.parametrize("name", MISDEEDS)
def test_bad_input_is_answered_and_touches_no_other_stream(shared: Daemon, name: str) -> None:
    subprotocol, act, told, code = MISDEEDS[name]
    audio = speech(2.0, seed=7)
    alone = whole_stream(shared, JSON, audio)
    with ExitStack() as stack:
        healthy = stack.enter_context(shared.connect())
        healthy.send(wire.Start())
        healthy.audio(audio[:20_001])
        with shared.connect(subprotocol) as bad:
            assert act(bad) == (told, code)
        healthy.audio(audio[20_001:])
        healthy.send(wire.Eos())
        messages, closed, _ = healthy.rest()
    assert closed == 1000
    calm = [m for m in lasting(messages) if not isinstance(m, wire.Warning)]
    assert calm == lasting(alone)


def test_a_failed_job_is_told_to_its_session_and_the_stream_goes_on(shared: Daemon) -> None:
    messages = whole_stream(shared, JSON, speech(0.5) + EXPLODE + speech(0.5))
    assert isinstance(messages[-1], wire.Done) and messages[-1].words == 2


def test_a_fault_in_one_stream_ends_only_that_one(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedEngine):
        def new_session(self, config: Any) -> Any:
            session = super().new_session(config)
            if config.language == "de":
                session.feed = lambda samples: [][1]  # type: ignore[method-assign]
            return session

    with daemon(Broken()) as running, running.connect() as bad:
        bad.send(wire.Start(language="de"))
        bad.audio(speech(0.1))
        messages, code, reason = bad.rest()
        assert errors(messages) == [("internal", True)] and (code, reason) == (1011, "internal")
        assert isinstance(whole_stream(running, JSON, speech(0.5))[-1], wire.Done)
    logged = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(logged) == 1 and "error=IndexError" in logged[0]


def test_nothing_said_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", logger="whisper_stream")
    engine = ScriptedEngine(word_text=lambda job: " mellon", spoil=_spoil)
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
    assert set(body["engine"]) == {"jobs"}
    with urllib.request.urlopen(shared.http) as answer:
        assert wire.STREAM_PATH in answer.read().decode()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{shared.http}/nothing")


SCRIPTED = (
    "import sys; from tests.server_rig import ScriptedEngine; "
    "from whisper_stream.server.main import main; engine = ScriptedEngine(); "
    "engine.gate.clear(); sys.exit(main(sys.argv[1:], lambda config: engine))"
)


def serve(*flags: str, scripted: bool = False) -> subprocess.Popen[str]:
    program = ["-c", SCRIPTED] if scripted else ["-m", "whisper_stream.server"]
    return subprocess.Popen(
        [sys.executable, "-W", "error", *program, *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def announced(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()
    url: str = json.loads(line)["url"]
    return url


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "{busy}"], ["cannot listen", "{busy}", "--port"]),
        (["--port", "ninety"], ["--port", "ninety"]),
        (["--port", "70000"], ["--port", "65535"]),
        (["--host", "256.1.1.1", "--port", "0"], ["cannot listen", "256.1.1.1"]),
        (["--max-streams", "0"], ["--max-streams", "1 or more"]),
        (["--sing"], ["--sing", "--help"]),
        (["--model", "no-such-model", "--port", "0"], ["no-such-model"]),
        (["--device", "abacus", "--port", "0"], ["abacus"]),
    ],
)
def test_what_cannot_start_says_why_in_one_line(flags: list[str], words: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = str(busy.getsockname()[1])
        with serve(*(flag.format(busy=port) for flag in flags)) as process:
            out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert out == "" and err.startswith("whisper-stream: error: ") and err.count("\n") == 1
    for word in words:
        assert word.format(busy=port) in err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_an_idle_daemon_well(name: str) -> None:
    with serve("--port", "0", "--announce", scripted=True) as process:
        assert announced(process).startswith("ws://127.0.0.1:")
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    lines = err.splitlines()
    assert "listening on ws://127.0.0.1:" in lines[0] and "event=stopped" in lines[-1]
    assert len(lines) == 2


def test_a_second_signal_ends_it_at_once() -> None:
    with serve("--port", "0", "--announce", scripted=True) as process:
        with connect(announced(process), proxy=None) as ws:
            peer = Peer(ws)
            peer.send(wire.Start())
            peer.audio(speech(1.0))
            peer.until(wire.Ready)
            process.send_signal(signal.SIGTERM)
            peer.until(wire.Warning)  # the engine is held: the stream would take ten seconds
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == -signal.SIGTERM
        process.communicate()


def test_the_real_daemon_transcribes_and_does_not_outlive_its_parent() -> None:
    """With tiny.en and real speech; its standard input is the parent's leash."""
    samples = load_audio(Path(__file__).parent / "data" / "en-speech-jfk.wav")
    audio = (np.asarray(samples) * 32_767).astype("<i2").tobytes()
    flags = ["--model", "tiny.en", "--port", "0", "--announce", "--exit-with-stdin"]
    flags += ["--compute-type", "float32"]  # the same words on any processor
    with serve(*flags) as process:
        url = announced(process)
        with connect(url, subprotocols=[Subprotocol(MSGPACK)], compression=None, proxy=None) as ws:
            peer = Peer(ws)
            peer.send(wire.Start(language="en"))
            for start in range(0, len(audio), 32_000):
                peer.audio(audio[start : start + 32_000])
            peer.send(wire.Eos())
            messages, code, _ = peer.rest()
        _, err = process.communicate(timeout=30)  # closes its standard input
    assert code == 1000 and process.returncode == 0, err
    done = messages[-1]
    assert isinstance(done, wire.Done) and done.samples * 2 == len(audio)
    text = transcript(messages).lower()
    assert "what your country can do for you" in text
    assert "what you can do for your country" in text
    assert "country" not in err
