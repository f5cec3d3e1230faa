"""``whisper-stream bench``: inputs, runs on each clock, the report, the picture, and errors."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from whisper_stream.clients.cli import main
from whisper_stream.model import loading
from whisper_stream.model.errors import UsageError
from whisper_stream.model.whisper import Whisper
from whisper_stream.streamer import bench_command
from whisper_stream.streamer.bench import BenchResult, PlainRun
from whisper_stream.streamer.bench_clips import BenchClip, read_clips
from whisper_stream.streamer.bench_flags import BenchOptions, parse_options
from whisper_stream.streamer.bench_metrics import CommittedWord, Erasure, committed_words
from whisper_stream.streamer.bench_plot import draw
from whisper_stream.streamer.bench_report import summary, table
from whisper_stream.streamer.bench_runs import MeteredBackend, PeakMemory, run_stream
from whisper_stream.streamer.bench_scoring import ErrorCount
from whisper_stream.streamer.events import Done
from whisper_stream.streamer.jobs import DecodeJob, DecodeResult

from .helpers import FakeDecoder, make_session, scripted, word_text

DATA = Path(__file__).parent / "data"
JFK = DATA / "en-speech-jfk.wav"
KEYS = (
    ("wer", "wer_offline", "commit_p50", "commit_p95", "shown_p50", "shown_p95", "erasure")
    + ("retracted", "flush_seconds", "cpu_per_audio_second", "rss_mb", "updates", "decoder_steps")
    + ("files",)
)


class FakeBackend:
    def __init__(self) -> None:
        self.decoder = FakeDecoder()

    def decode(self, jobs: Any) -> list[DecodeResult]:
        return [self.decoder(job) for job in jobs]


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


def png_size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


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

    def run(options: BenchOptions, model: Whisper, clips: list[BenchClip]) -> int:
        measured.extend(clip.path.name for clip in clips)
        return 0

    monkeypatch.setattr(bench_command, "_run", run)
    assert main(["bench", str(DATA), "--kind", "all"]) == 0
    assert set(measured) == {path.name for path in (*DATA.glob("en-*"), *DATA.glob("noise-*"))}
    assert "recordings not in English, left out: 2" in capsys.readouterr().err


def test_help_loads_no_torch() -> None:
    script = (
        "import sys; from whisper_stream.clients.cli import main; main(['bench', '--help']);"
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
        ([str(JFK), "--set", "languages=en,xx"], "languages has 'xx', which is no language code"),
        ([str(JFK), "--set", "carry_prompt=maybe"], "'maybe' is no value for carry_prompt"),
        ([str(JFK), "--picture", "/no/such/folder/a.png"], "its folder does not exist"),
        ([str(JFK), "--reference", "/no/such/text"], "/no/such/text cannot be read"),
        ([str(JFK), str(JFK), "--reference", str(DATA / "README.md")], "a single audio file"),
        ([str(DATA), "--only", "nothing"], "no recording is left"),
        ([str(DATA), "--kind", "longform"], "no recording is left"),
        ([str(DATA.parent)], "manifest.jsonl cannot be read"),
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
        "whisper_stream.streamer.bench_command.find_spec",
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


# Manifests


def test_a_manifest_gives_texts_languages_and_times(tmp_path: Path) -> None:
    rows = [
        {"file": "a.wav", "text": "2:30", "spoken": "two thirty", "language": "en"},
        {"file": "b.wav", "kind": "noise", "text": ""},
        {"file": "c.wav", "words": [{"word": "hi", "start": 0, "end": 0.5}]},
    ]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    first, third = read_clips([tmp_path])
    assert first.path == tmp_path / "a.wav"
    assert first.references == ("2:30", "two thirty")
    assert first.language == "en"
    assert third.references == ()
    assert [(word.text, word.start, word.end) for word in third.words] == [("hi", 0.0, 0.5)]
    assert [clip.path.name for clip in read_clips([manifest], kinds=["noise"])] == ["b.wav"]
    assert len(read_clips([manifest], kinds=["all"])) == 3


@pytest.mark.parametrize("line", ["{", "[]", '{"text": "a"}', '{"file": "a", "text": 1}'])
def test_a_bad_line_of_a_manifest_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "manifest.jsonl").write_text(f'{{"file": "a.wav"}}\n{line}\n')
    with pytest.raises(UsageError, match=r"manifest\.jsonl line 2 is no object"):
        read_clips([tmp_path])


def test_word_times_must_be_numbers(tmp_path: Path) -> None:
    row = {"file": "a.wav", "words": [{"word": "hi", "start": "soon", "end": 1}]}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(row))
    with pytest.raises(UsageError, match="line 1"):
        read_clips([tmp_path])


# Runs


def test_the_virtual_clock_counts_what_each_update_takes() -> None:
    script = scripted([0.5] + [0.1] * 8, tail=0.5)
    meter = MeteredBackend(FakeBackend())
    run = run_stream(make_session(), script.audio, meter, clock="virtual", costs=[0.3] * 50)
    last = run.events[-1]
    assert isinstance(last.event, Done)
    assert 0.0 < last.time - run.audio_seconds <= 0.6  # one update, or one and a part of another
    assert run.audio_seconds == len(script.audio) / 16_000
    texts = [word.text for word in committed_words(run.events)]
    assert texts == [word_text(word) for word, _ in script.words]


def test_on_the_free_clock_updates_take_no_time() -> None:
    script = scripted([0.5] + [0.1] * 8, tail=0.5)
    meter = MeteredBackend(FakeBackend())
    run = run_stream(make_session(), script.audio, meter, clock="free")
    assert run.events[-1].time == pytest.approx(run.audio_seconds)
    assert run.decoder_steps == meter.steps > 0
    assert len(run.costs) == len(meter.costs)


def test_without_drafts_the_words_are_the_same_at_more_steps() -> None:
    script = scripted([0.5] + [0.1] * 12, tail=0.5)
    runs = []
    for drafts in (True, False):
        backend = FakeBackend()
        meter = MeteredBackend(backend, drafts=drafts)
        runs.append(run_stream(make_session(), script.audio, meter, clock="free"))
        assert any(job.draft for job in backend.decoder.jobs) == drafts
    ours, plain = runs
    assert committed_words(ours.events) == committed_words(plain.events)
    assert ours.decoder_steps < plain.decoder_steps


def test_in_real_time_audio_comes_as_it_is_spoken() -> None:
    script = scripted([0.2, 0.1], tail=0.3)
    backend = MeteredBackend(FakeBackend())

    def submit(job: DecodeJob) -> Future[DecodeResult]:
        future: Future[DecodeResult] = Future()
        future.set_result(backend.decode([job])[0])
        return future

    run = run_stream(make_session(), script.audio, backend, clock="real", submit=submit)
    texts = [word.text for word in committed_words(run.events)]
    assert texts == [word_text(word) for word, _ in script.words]
    times = [timed.time for timed in run.events]
    assert times == sorted(times)
    assert times[-1] >= run.audio_seconds


def test_a_failed_update_ends_a_run_in_real_time() -> None:
    def submit(job: DecodeJob) -> Future[DecodeResult]:
        future: Future[DecodeResult] = Future()
        future.set_exception(ValueError("broken"))
        return future

    meter = MeteredBackend(FakeBackend())
    with pytest.raises(ValueError, match="broken"):
        run_stream(make_session(), scripted([0.1]).audio, meter, clock="real", submit=submit)


def test_peak_memory_falls_when_it_begins_anew() -> None:
    big = bytearray(200_000_000)
    held = PeakMemory().megabytes()
    del big
    assert 200 < held
    if Path("/proc/self/clear_refs").exists():
        assert PeakMemory().megabytes() < held - 100


# Report and picture


def result(**changes: Any) -> BenchResult:
    given: dict[str, Any] = {
        "file": "a.wav",
        "language": "en",
        "by_character": False,
        "audio_seconds": 10.0,
        "text": "a b c",
        "text_offline": "a b",
        "errors": ErrorCount(1, 2),
        "errors_offline": ErrorCount(0, 2),
        "words": tuple(
            CommittedWord(text=f" {name}", shown=at + 0.5, committed=at + 1.0)
            for at, name in enumerate("abc")
        ),
        "ends": (0.0, 0.5, None),
        "erasure": Erasure(4, 1),
        "erasure_exact": Erasure(4, 2),
        "retracted": 0,
        "flush_seconds": 0.3,
        "cpu_seconds": 2.0,
        "updates": 5,
        "decoder_steps": 30,
    }
    return BenchResult(**{**given, **changes})


def test_the_summary_is_over_all_words_and_files() -> None:
    other = result(
        file="b.wav",
        audio_seconds=30.0,
        errors=ErrorCount(0, 6),
        words=(CommittedWord(text=" d", shown=2.0, committed=7.0),),
        ends=(2.0,),
        erasure=Erasure(6, 0),
        flush_seconds=0.5,
        cpu_seconds=4.0,
        plain=PlainRun(text="d", decoder_steps=60, cpu_seconds=8.0),
    )
    noise = result(
        file="n.wav",
        words=(),
        ends=(),
        errors=ErrorCount(1, 0),
        errors_offline=None,
        cpu_seconds=0.0,
    )
    found = summary([result(), other, noise], rss_mb=321.0)
    assert found["wer"] == 0.25  # of 0.5 and 0; where nothing is said there is no rate
    assert found["wer_pooled"] == 0.25  # 2 errors, of which one in noise, over 8 words
    assert found["commit_p50"] == 1.5  # of 1.0, 1.5 and 5.0
    assert found["commit_p95"] == pytest.approx(4.65)
    assert found["commit_max"] == 5.0
    assert found["shown_p50"] == 0.5  # of 0.5, 1.0 and 0.0
    assert found["erasure"] == pytest.approx(2 / 14, abs=1e-4)
    assert found["flush_seconds"] == 0.3
    assert found["flush_max"] == 0.5
    assert found["cpu_per_audio_second"] == pytest.approx(6 / 50)
    assert (found["updates"], found["decoder_steps"], found["rss_mb"]) == (15, 90, 321.0)
    assert (found["words"], found["words_timed"]) == (4, 3)
    assert [row["file"] for row in found["files"]] == ["a.wav", "b.wav", "n.wav"]
    assert found["files"][2]["commit_p50"] is None
    assert "text" not in found["files"][0]


def test_texts_come_when_asked_for() -> None:
    found = summary([result()], rss_mb=1.0, texts=True)
    assert found["files"][0]["text"] == "a b c"
    assert found["files"][0]["text_offline"] == "a b"


def test_the_savings_are_those_against_the_plain_run() -> None:
    plain = PlainRun(text="a b x", decoder_steps=60, cpu_seconds=8.0)
    found = summary([result(plain=plain)], rss_mb=1.0)
    assert found["decoder_steps_ratio"] == 0.5
    assert found["cpu_ratio"] == 0.25
    assert found["plain_differs"] == 1
    assert "committed words differ in 1 of 1 files" in table(found)


def test_the_table_has_a_line_a_file_and_one_for_all() -> None:
    found = summary([result(), result(file="a-longer-name.wav", errors=None)], rss_mb=99.6)
    lines = table(found).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["a.wav", "a-longer-name.wav", "all"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[2].split()[1] == "-"  # no reference text, no error rate
    assert "memory while streaming: 100 MB at most" in lines


def test_a_picture_of_several_recordings(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    draw([result(), result(words=(), ends=()), result(file="c.wav")], path)
    assert png_size(path) == (1100, 800)
    assert 5_000 < path.stat().st_size < 500_000
