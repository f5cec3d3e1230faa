"""``whisper-stream load``: streams of a scripted server, flags, and a real daemon."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from pathlib import Path

import msgspec
import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.errors import ConnectError
from whisper_stream.clients.tools.load import parse_options
from whisper_stream.clients.tools.load_clips import LoadClip
from whisper_stream.clients.tools.load_plan import StreamPlan
from whisper_stream.clients.tools.load_run import Gpu, Health, Watch, health_url, read_health
from whisper_stream.clients.tools.load_worker import StreamOutcome, cut, play_stream
from whisper_stream.server.protocol import messages as wire

from ...helpers.fake_server import WORDS, Peer, Script, fake_server
from ...helpers.server_rig import ScriptedEngine, daemon
from ...helpers.texts import DATA

JFK = DATA / "en-speech-jfk.wav"
SHORT = DATA / "en-read-7902-cutter.flac"  # 2 s
NAMES = ("streams", "commit_p50", "commit_p95", "commit_p99", "lag_max", "refused", "wer")


# Streams of a scripted server


def play(url: str, *audio: bytes) -> StreamOutcome:
    clip = LoadClip(path="a", language="en", seconds=2.0)
    plan = StreamPlan(stream=3, delay=0.0, clips=(clip,) * len(audio))
    return asyncio.run(play_stream(plan, [cut(each) for each in audio], url))


async def early(peer: Peer) -> None:
    """Commits three words that end 1.5 s into audio of a fifth of a second."""
    await peer.ready()
    await peer.until_eos()
    await peer.send(wire.Lag(behind=1.5, interval=1.0), wire.Lag(behind=0.5, interval=1.0))
    await peer.send(wire.Commit(text=" Ask not what", words=WORDS))
    await peer.done()


def test_a_delay_is_counted_from_the_end_of_the_word() -> None:
    with fake_server(early) as server:
        outcome = play(server.url, bytes(6_400))
        assert len(server.peers[0].audio) == 6_400
        assert server.peers[0].received[0] == wire.Start(language="en")
    assert outcome.refused is None and outcome.failed is None
    assert outcome.text == " Ask not what" and outcome.lag_max == 1.5
    assert outcome.audio_seconds == 0.2
    first, second, third = outcome.delays
    assert first >= 0.2 - 0.4  # it came when all audio had been spoken; the word ended at 0.4 s
    assert first - second == pytest.approx(0.4) and second - third == pytest.approx(0.7)


def test_a_second_of_silence_lies_between_recordings() -> None:
    with fake_server() as server:
        play(server.url, b"\x01" * 3_200, b"\x02" * 3_200)
        assert server.peers[0].audio == b"\x01" * 3_200 + bytes(32_000) + b"\x02" * 3_200


def saying(code: str, *, opened: bool = False) -> Script:
    async def script(peer: Peer) -> None:
        await (peer.ready() if opened else peer.receive())
        await peer.send(wire.Error(code=code, message="in words"))
        await peer.socket.close(1013, code)

    return script


async def closing(peer: Peer) -> None:
    await peer.receive()
    await peer.socket.close(1013, "full up")


@pytest.mark.parametrize(
    ("script", "refused", "failed"),
    [
        (saying("too_many_streams"), "too_many_streams", None),
        (saying("overloaded"), "overloaded", None),
        (closing, "full up", None),
        (saying("bad_start"), None, "in words"),
        (saying("overloaded", opened=True), None, "in words"),
    ],
)
def test_refused_is_not_failed(script: Script, refused: str | None, failed: str | None) -> None:
    with fake_server(script) as server:
        outcome = play(server.url, bytes(3_200))
    assert (outcome.refused, outcome.failed) == (refused, failed)


def test_http_503_is_a_refusal_and_404_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for status, refused in ((503, "HTTP 503"), (429, "HTTP 429"), (404, None)):

        async def refuse(url: str, *options: object, status: int = status, **more: object) -> None:
            raise ConnectError(url, "because", status)

        monkeypatch.setattr("whisper_stream.clients.tools.load_worker.dial", refuse)
        outcome = play("ws://127.0.0.1:1", bytes(2))
        assert outcome.refused == refused
        assert (outcome.failed is None) == (refused is not None)


# The server's cost


def test_a_server_tells_what_it_uses() -> None:
    assert health_url("wss://host:1/v1/stream?key=a") == "https://host:1/healthz?key=a"
    with daemon(ScriptedEngine()) as running:
        told = asyncio.run(read_health(running.url))
        with urllib.request.urlopen(f"{running.http}/healthz") as answer:
            later = msgspec.json.decode(answer.read())
    assert told.cpu_seconds is not None and 0 < told.cpu_seconds <= later["cpu_seconds"]
    assert told.memory_bytes is not None and told.memory_bytes > 10_000_000
    assert told.gpu is None and "gpu" not in later  # no model runs on one here


def test_what_is_seen_while_a_load_runs() -> None:
    watch = Watch("ws://nowhere", Health(cpu_seconds=1.0, memory_bytes=100))
    gpu = Gpu(memory_bytes=7, utilization=0.5)
    watch.last(Health(cpu_seconds=2.0, memory_bytes=180, gpu=gpu))
    watch.last(Health())  # it did not answer in time
    watch.last(Health(cpu_seconds=4.0, memory_bytes=150, gpu=Gpu(memory_bytes=5, utilization=1.0)))
    assert (watch.cpu_seconds, watch.memory_growth) == (3.0, 80)
    assert (watch.gpu_utilization, watch.gpu_memory) == (0.75, 7)
    silent = Watch("ws://nowhere", Health())
    silent.last(Health())
    assert (silent.cpu_seconds, silent.memory_growth) == (None, None)
    assert (silent.gpu_utilization, silent.gpu_memory) == (None, None)


def test_a_server_that_does_not_tell() -> None:
    with fake_server() as server:
        assert asyncio.run(read_health(server.url)) == Health()
    assert asyncio.run(read_health(server.url)) == Health()  # gone


# The command


def test_the_key_of_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = tmp_path / "keys"
    keys.write_text("one:0123456789abcdef\n")
    with daemon(ScriptedEngine(), api_keys=str(keys)) as running:
        flags = ["load", str(SHORT), "--server", running.url, "--json"]
        assert main(flags) == 1
        assert "wants a key" in capsys.readouterr().err
        monkeypatch.setenv("WHISPER_STREAM_KEY", "wrong, and not used: the flag goes before")
        assert main([*flags, "--key", "0123456789abcdef"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["failed"] == figures["refused"] == 0
    assert figures["player_cpu_per_audio_second"] > 0
    assert parse_options(flags[1:]).key is not None
    assert parse_options([str(SHORT)]).key is None  # an embedded daemon wants none


def test_flags() -> None:
    options = parse_options([str(DATA), "--streams", "3", "--bound", "1.5", "--model", "base.en"])
    assert (options.streams, options.bound, options.daemon.model) == (3, 1.5, "base.en")
    assert {each.language for each in options.clips} == {"en"}  # all that the model knows
    options = parse_options([str(DATA), "--server", "ws://127.0.0.1"])
    assert {each.language for each in options.clips} == {"en", "de", "zh"}


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--streams", "0"], "whole number from 1 up"),
        (["--bound", "-1"], "number of seconds from 0 up"),
        (["--server", "http://host"], "write it like ws://"),
        (["--server", "ws://host", "--model", "base"], "--model is for an embedded daemon"),
        (["--key", "abc"], "--key is for a daemon that runs already"),
        (["--find-capacity", "--streams", "9", "--most", "8"], "--most"),
        (["--picture", "/nowhere/at/all.png"], "its folder does not exist"),
        (["missing.wav"], "does not exist"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    flags: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["load", str(SHORT), *flags]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1


def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("whisper_stream.clients.tools.load.find_spec", lambda name: None)
    assert main(["load", str(SHORT)]) == 2
    assert "whisper-stream[bench]" in capsys.readouterr().err


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with fake_server() as server:
        pass
    assert main(["load", str(SHORT), "--server", server.url]) == 1
    assert "every stream failed" in capsys.readouterr().err


def test_refused_streams_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with daemon(ScriptedEngine(), max_streams=1) as running:
        flags = ["--server", running.url, "--streams", "2", "--spread", "0.1", "--json"]
        assert main(["load", str(SHORT), *flags]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["refused"] == 1 and figures["failed"] == 0
    assert figures["reasons"] == {"too_many_streams": 1}


@pytest.mark.timeout(120)  # plays speech at its own pace
def test_the_search_over_a_daemon_of_two_streams(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "load.png"
    with daemon(ScriptedEngine(), max_streams=2) as running:
        flags = ["--server", running.url, "--spread", "0.1", "--bound", "60", "--json"]
        search = ["--find-capacity", "--picture", str(picture)]
        assert main(["load", str(SHORT), *flags, *search]) == 0
    out, err = capsys.readouterr()
    figures = json.loads(out)
    assert (figures["capacity"], figures["streams"], figures["bound"]) == (2, 2, 60.0)
    assert [(row["streams"], row["refused"]) for row in figures["tried"]] == [
        *((1, 0), (2, 0), (3, 1), (4, 2))
    ]
    assert "capacity: 2 streams" in err and picture.stat().st_size > 1_000


@pytest.mark.timeout(120)  # plays speech at its own pace
def test_two_real_streams(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--streams", "2", "--language", "en", "--spread", "0.5", "--json"]
    manifest = DATA / "manifest.jsonl"
    assert main(["load", str(JFK), str(manifest), *flags]) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(NAMES) <= set(figures)
    assert figures["streams"] == 2 and figures["refused"] == figures["failed"] == 0
    assert [row["words"] > 10 for row in figures["each"]] == [True, True]
    assert figures["wer"] is not None and figures["wer"] < 0.2
    assert 0 < figures["commit_p50"] <= figures["commit_p95"] <= figures["commit_p99"]
    assert figures["cpu_per_audio_second"] > 0
