"""``whisper-stream load``: its flags, and loads of daemons."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.tools.load import parse_options

from ...helpers.fake_server import fake_server
from ...helpers.server_rig import ScriptedEngine, daemon
from ...helpers.texts import DATA

JFK = DATA / "en-speech-jfk.wav"
SHORT = DATA / "en-read-7902-cutter.flac"  # 2 s
NAMES = ("streams", "commit_p50", "commit_p95", "commit_p99", "lag_max", "refused", "wer")


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
        (["--streams", "0"], "whole number from 1 to"),
        (["--bound", "-1"], "number from 0 up"),
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
    monkeypatch.setattr("whisper_stream.clients.tools.report.find_spec", lambda name: None)
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
