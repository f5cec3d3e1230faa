"""``whisper-stream load``: its pure parts, streams of a scripted server, and a real daemon."""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.cli import main
from whisper_stream.clients.errors import ConnectError, SourceError, UsageError
from whisper_stream.clients.load_capacity import find_capacity
from whisper_stream.clients.load_clips import LoadClip, choose_language, read_clips
from whisper_stream.clients.load_flags import parse_options
from whisper_stream.clients.load_health import Gpu, Health, Watch, health_url, read_health
from whisper_stream.clients.load_line import cut
from whisper_stream.clients.load_plan import StreamPlan, join_references, make_plans, share_out
from whisper_stream.clients.load_plot import draw
from whisper_stream.clients.load_report import figures_of, keeps_up, percentile, table, use_of
from whisper_stream.clients.load_run import LoadRun
from whisper_stream.clients.load_scoring import Errors, count_errors, units
from whisper_stream.clients.load_stream import StreamOutcome, play_stream
from whisper_stream.server import wire

from .fake_server import WORDS, Peer, Script, fake_server
from .server_rig import ScriptedEngine, daemon
from .texts import DATA

JFK = DATA / "en-speech-jfk.wav"
SHORT = DATA / "en-read-7902-cutter.flac"  # 2 s
NAMES = ("streams", "commit_p50", "commit_p95", "commit_p99", "lag_max", "refused", "wer")


def clip(
    path: str, language: str | None = "en", *references: str, seconds: float = 2.0
) -> LoadClip:
    return LoadClip(path=path, language=language, references=references, seconds=seconds)


# The search


def search(capacity: int, first: int, most: int) -> tuple[int, list[int]]:
    asked: list[int] = []

    async def carries(streams: int) -> bool:
        asked.append(streams)
        return streams <= capacity

    return asyncio.run(find_capacity(carries, first=first, most=most)), asked


@given(st.integers(0, 300), st.integers(1, 300), st.integers(1, 300))
def test_the_search_finds_the_largest_number_and_asks_once(
    capacity: int, first: int, most: int
) -> None:
    found, asked = search(capacity, first, most)
    assert found == min(capacity, most)
    assert len(asked) == len(set(asked)) and len(asked) <= 2 * most.bit_length() + 1
    assert max(asked) <= most


def test_the_search_doubles_then_halves() -> None:
    assert search(11, 2, 1024) == (11, [2, 4, 8, 16, 12, 10, 11])
    assert search(0, 4, 1024) == (0, [4, 2, 1])


# Plans


def test_streams_begin_with_different_recordings_at_different_times() -> None:
    clips = [clip("a"), clip("b"), clip("c", "de")]
    plans = make_plans(clips, 4, seconds=0.0, spread=2.0, seed=1)
    assert [[each.path for each in plan.clips] for plan in plans] == [["a"], ["b"], ["c"], ["a"]]
    assert [plan.language for plan in plans] == ["en", "en", "de", "en"]
    assert len({plan.delay for plan in plans}) == 4
    assert all(0 <= plan.delay <= 2 for plan in plans)
    assert plans == make_plans(clips, 4, seconds=0.0, spread=2.0, seed=1)
    assert plans != make_plans(clips, 4, seconds=0.0, spread=2.0, seed=2)


def test_recordings_follow_in_one_language_until_enough_is_spoken() -> None:
    clips = [clip("a"), clip("b"), clip("c", "de")]
    plans = make_plans(clips, 3, seconds=7.5, spread=0.0, seed=0)  # 2 s each, 1 s between
    paths = ["".join(each.path for each in plan.clips) for plan in plans]
    assert paths == ["aba", "bab", "ccc"]
    endless = make_plans([clip("a", seconds=0.0)], 1, seconds=9.0, spread=0.0, seed=0)
    assert len(endless[0].clips) == 1  # a file that does not say how long it is


def test_plans_are_dealt_to_processes() -> None:
    plans = make_plans([clip("a")], 5, seconds=0.0, spread=0.0, seed=0)
    assert [[plan.stream for plan in share] for share in share_out(plans, 2)] == [[0, 2, 4], [1, 3]]
    assert len(share_out(plans, 64)) == 5


def test_references_of_several_recordings_are_joined() -> None:
    joined = join_references(
        [clip("a", "en", "in 1990", "in nineteen ninety"), clip("b", "en", "so")]
    )
    assert joined == ("in 1990 so", "in nineteen ninety so")
    assert join_references([clip("a", "en", "yes"), clip("b")]) == ()


# Recordings


def test_a_manifest_gives_languages_and_references() -> None:
    clips = read_clips([DATA, JFK])
    by_name = {Path(each.path).name: each for each in clips[:-1]}
    assert "noise-dog.flac" not in by_name
    assert by_name["de-read-portal.flac"].language == "de"
    assert by_name[JFK.name].references[0].startswith("And so, my fellow Americans")
    assert clips[-1] == LoadClip(path=str(JFK), seconds=11.0)
    chosen = choose_language(clips, "de")
    assert {Path(each.path).name for each in chosen} == {"de-read-portal.flac", JFK.name}
    assert {each.language for each in chosen} == {"de"}


def test_recordings_that_cannot_be_used(tmp_path: Path) -> None:
    manifest = tmp_path / "manifest.jsonl"
    with pytest.raises(SourceError, match="manifest.jsonl: cannot be read"):
        read_clips([tmp_path])
    manifest.write_text('\n{"text": "no file"}\n')
    with pytest.raises(SourceError, match="line 2: is no row"):
        read_clips([manifest])
    manifest.write_text('{"file": "x.wav", "kind": "noise"}\n')
    with pytest.raises(UsageError, match="no recording of kind speech"):
        read_clips([manifest])
    with pytest.raises(UsageError, match="no recording is in 'fr'"):
        choose_language([clip("a")], "fr")


# Scores


def test_words_are_casefolded_letters_and_digits() -> None:
    assert units("Don’t — STOP: 3.5 Straße!", "en") == ["dont", "stop", "3", "5", "strasse"]
    assert units("我们， 走！", "zh") == ["我", "们", "走"]
    assert units("किताब।", "hi") == ["किताब"]  # its vowel signs are no letters


def test_errors_are_counted_against_the_reference_that_fits_best() -> None:
    assert count_errors(["ask not what"], " Ask nut, what now", "en") == Errors(2, 3)
    assert count_errors(["in 1990", "in nineteen ninety"], "In nineteen ninety.", "en") == Errors(
        0, 3
    )
    assert count_errors(["one two"], "", "en") == Errors(2, 2)
    assert count_errors([], "word", "en") is None
    assert count_errors(["…"], "word", "en") is None


# Figures


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=60), st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(values, percent) == pytest.approx(expected, abs=1e-9)


def test_percentiles_of_few_values() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0


def a_run() -> LoadRun:
    plans = (
        StreamPlan(stream=0, delay=0.0, clips=(clip("x/a.wav", "en", "ask not what"),)),
        StreamPlan(stream=1, delay=0.1, clips=(clip("b.wav", "en", "ask"),)),
        StreamPlan(stream=2, delay=0.2, clips=(clip("c.wav", "en", "so it is"),)),
    )
    outcomes = (
        StreamOutcome(
            stream=0, audio_seconds=6.0, delays=[1.0, 2.0, 3.0], text=" Ask nut what", lag_max=0.5
        ),
        StreamOutcome(stream=1, refused="too_many_streams"),
        StreamOutcome(stream=2, audio_seconds=2.0, delays=[0.0, 4.0], text=" so", late_max=0.25),
    )
    return LoadRun(
        plans=plans,
        outcomes=outcomes,
        cpu_seconds=2.0,
        memory_growth=3 * 2**20,
        gpu_utilization=0.25,
        gpu_memory=2**31,
        player_cpu_seconds=0.5,
    )


def test_the_figures_of_a_run() -> None:
    figures = figures_of(a_run(), count_errors)
    each = figures.pop("each")
    assert figures == {
        "streams": 3,
        "audio_seconds": 8.0,
        "words": 5,
        "commit_p50": 2.0,
        "commit_p95": 3.8,
        "commit_p99": 3.96,
        "lag_max": 0.5,
        "late_max": 0.25,
        "refused": 1,
        "failed": 0,
        "wer": 0.5,  # 3 of 6 words: the refused stream has no part in it
        "cpu_per_audio_second": 0.25,
        "memory_per_stream": 3 * 2**19,  # of the two that were let in
        "gpu_utilization": 0.25,
        "gpu_memory": 2**31,
        "player_cpu_per_audio_second": 0.0625,
        "reasons": {"too_many_streams": 1},
    }
    assert [row["wer"] for row in each] == [0.3333, None, 0.6667]
    assert [row["commit_p50"] for row in each] == [2.0, None, 2.0]
    assert each[0]["files"] == ["a.wav"]
    expected = "1.50 MiB of memory a stream, GPU busy 25% of the time, 2.00 GiB of its memory"
    assert use_of(figures) == f"server: {expected}\n"
    nothing = dict.fromkeys(("memory_per_stream", "gpu_utilization", "gpu_memory"))
    assert use_of(figures | nothing) == ""


def test_the_table_has_a_line_for_each_stream() -> None:
    figures = figures_of(a_run(), count_errors)
    lines = table([("0", figures["each"][1]), ("all", figures)], "stream").splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    assert lines[1].split() == ["0", "0", "-", "-", "-", "0.00", "1", "0", "-", "-"]
    assert lines[2].split() == [
        *("all", "5", "2.00", "3.80", "3.96", "0.50", "1", "0", "50.0%", "0.25")
    ]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, True),
        ({"commit_p95": 2.01}, False),
        ({"commit_p95": None}, False),
        ({"refused": 1}, False),
        ({"failed": 1}, False),
    ],
)
def test_what_keeps_up(change: dict[str, Any], kept: bool) -> None:
    figures = {"commit_p95": 2.0, "refused": 0, "failed": 0} | change
    assert keeps_up(figures, 2.0) is kept


def test_the_picture_of_one_run_and_of_several(tmp_path: Path) -> None:
    figures = figures_of(a_run(), count_errors)
    for runs in (
        [(figures, [1.0, 2.0])],
        [({**figures, "streams": 8, "commit_p95": None}, []), (figures, [1.0, 2.0])],
    ):
        path = tmp_path / f"{len(runs)}.png"
        draw(runs, 2.0, path)
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:]) == (1100, 450)


# Streams of a scripted server


def play(url: str, *audio: bytes) -> StreamOutcome:
    plan = StreamPlan(stream=3, delay=0.0, clips=(clip("a"),) * len(audio))
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

        monkeypatch.setattr("whisper_stream.clients.load_line.dial", refuse)
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
        (["missing.wav"], "no such file"),
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
    monkeypatch.setattr("whisper_stream.clients.load_command.find_spec", lambda name: None)
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
