"""``whisper-stream bench``: the whole command, its flags and its errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.tools import bench as bench_command
from whisper_stream.clients.tools.bench import BenchOptions, parse_options
from whisper_stream.clients.tools.clips import Clip
from whisper_stream.model.weights import loading
from whisper_stream.model.whisper.network import Whisper

from ...helpers.texts import png_size

DATA = Path(__file__).parents[2] / "data"
JFK = DATA / "en-speech-jfk.wav"
KEYS = (
    ("wer", "wer_offline", "commit_p50", "commit_p95", "shown_p50", "shown_p95", "erasure")
    + ("retracted", "flush_seconds", "cpu_per_audio_second", "rss_mb", "updates", "decoder_steps")
    + ("files",)
)


@pytest.fixture
def loaded(tiny_en: Whisper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes the model that is loaded anyway."""
    monkeypatch.setattr(loading, "load_model", lambda *_, **__: tiny_en)


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    code = main(["bench", *argv, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out.splitlines()[-1])
    return found


# The whole command


@pytest.mark.usefixtures("loaded")
def test_a_real_recording_with_its_manifest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "delays.png"
    flags = ["--only", "jfk", "--clock", "free", "--picture", str(picture)]
    found = run_json(capsys, str(DATA), *flags)
    assert set(KEYS) <= set(found)
    (row,) = found["files"]
    assert set(KEYS) - {"files", "rss_mb"} <= set(row)
    assert row["file"] == JFK.name
    assert found["wer"] == found["wer_offline"] == 0.0
    assert found["words"] == found["words_timed"] == 22
    assert found["retracted"] == 0
    assert found["flush_seconds"] == 0.0  # inference is free
    assert found["shown_p50"] <= found["commit_p50"] <= found["commit_p95"] <= 4.0
    assert 0.0 <= found["erasure"] <= found["erasure_exact"] < 1.0
    assert found["decoder_steps"] > found["updates"] > 5
    assert found["rss_mb"] > 100
    assert png_size(picture) == (1100, 800)


@pytest.mark.usefixtures("loaded")
def test_a_reference_for_one_file_and_ends_from_whole_file_decoding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reference = tmp_path / "said.txt"
    reference.write_text("I am from the cutter lying off the coast of Spain.\n")
    argv = ["bench", str(DATA / "en-read-7902-cutter.flac"), "--reference", str(reference)]
    assert main([*argv, "--clock", "free", "--language", "en", "--plain", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["wer"] == pytest.approx(2 / 11, abs=1e-3)  # "of Spain" is not said
    # whole-file decoding may hear one word otherwise
    assert 8 <= found["words"] <= found["words_timed"] + 1
    assert found["plain_differs"] == 0
    assert found["decoder_steps"] < found["plain_decoder_steps"]
    assert "en-read-7902-cutter.flac" in captured.err


@pytest.mark.usefixtures("loaded")
def test_a_bad_recording_does_not_stop_the_others(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.wav"
    bad.write_text("no audio")
    good = DATA / "noise-dog.flac"
    assert main(["bench", str(bad), str(good), "--clock", "free", "--json"]) == 1
    captured = capsys.readouterr()
    assert [line for line in captured.err.splitlines() if "error" in line and "bad.wav" in line]
    found = json.loads(captured.out)
    assert [row["file"] for row in found["files"]] == [good.name]
    assert found["words"] == 0
    assert found["wer"] is None and found["commit_p50"] is None


@pytest.mark.usefixtures("loaded")
def test_an_english_model_leaves_other_languages_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["bench", str(DATA), "--only", "portal"]) == 2
    assert "tiny.en knows only English" in capsys.readouterr().err
    measured: list[str] = []

    def run(options: BenchOptions, model: Whisper, clips: list[Clip]) -> int:
        measured.extend(clip.name for clip in clips)
        return 0

    monkeypatch.setattr(bench_command, "_run", run)
    assert main(["bench", str(DATA), "--kind", "all"]) == 0
    assert set(measured) == {path.name for path in (*DATA.glob("en-*"), *DATA.glob("noise-*"))}
    assert "recordings not in English, left out: 2" in capsys.readouterr().err


def test_help_loads_no_torch() -> None:
    script = (
        "import sys; from whisper_stream.clients.cli.main import main; main(['bench', '--help']);"
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "--clock" in done.stdout
    assert not set(done.stderr.split()) & {"torch", "jiwer", "matplotlib", "numba"}


# Flags


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "required: FILE"),
        (["missing.wav"], "missing.wav does not exist"),
        ([str(JFK), "--clock", "wall"], "--clock"),
        ([str(JFK), "--clock", "real", "--plain"], "--plain runs the same schedule twice"),
        ([str(JFK), "--model", "tiniest"], "tiniest"),
        ([str(JFK), "--language", "xx"], "--language"),
        ([str(JFK), "--threads", "-1"], "--threads"),
        ([str(JFK), "--set", "speed=2"], "'speed' is none of"),
        ([str(JFK), "--set", "agreement=two"], "'two' is no value for agreement"),
        ([str(JFK), "--set", "agreement=1"], "agreement must be at least 2"),
        ([str(JFK), "--set", "policy"], "policy has no value: give policy=VALUE"),
        ([str(JFK), "--set", "policy=align"], "policy must be one of local-agreement, align-att"),
        ([str(JFK), "--set", "languages=en,xx"], "languages has 'xx'"),
        ([str(JFK), "--set", "carry_prompt=maybe"], "'maybe' is no value for carry_prompt"),
        ([str(JFK), "--picture", "/no/such/folder/a.png"], "its folder does not exist"),
        ([str(JFK), "--reference", "/no/such/text"], "/no/such/text: cannot be read"),
        ([str(JFK), str(JFK), "--reference", str(DATA / "README.md")], "a single audio file"),
        ([str(DATA), "--only", "nothing"], "no recording of kind"),
        ([str(DATA), "--kind", "longform"], "no recording of kind"),
        ([str(DATA.parent)], "manifest.jsonl: cannot be read"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(
    argv: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *argv]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("whisper-stream: error: ")
    assert told in line


@pytest.mark.parametrize("missing", ["jiwer", "matplotlib"])
def test_a_missing_extra_is_named(
    missing: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        "whisper_stream.clients.tools.report.find_spec",
        lambda name: None if name == missing else there(name),
    )
    assert main(["bench", str(JFK), "--picture", "a.png"]) == 2
    assert f"{missing} is not installed: pip install 'whisper-stream[bench]'" in (
        capsys.readouterr().err
    )


def test_options_of_the_stream_have_their_types() -> None:
    given = ["--set", "agreement=3", "--set", "update_interval=1", "--set", "prompt=a=b"]
    given += ["--set", "policy=align-att", "--set", "languages=en, de,"]
    options = parse_options([str(JFK), *given, "--set", "condition_on_previous=False"])
    assert options.stream == {
        "policy": "align-att",
        "languages": ("en", "de"),
        "agreement": 3,
        "update_interval": 1.0,
        "prompt": "a=b",
        "condition_on_previous": False,
    }
