"""``whisper-stream transcribe``: the flags of the ``whisper`` command, files, and errors."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import whisper
import whisper.utils
from whisper_stream.clients.cli.main import main
from whisper_stream.clients.cli.transcribe import parse_settings
from whisper_stream.model.cpu import warmup
from whisper_stream.model.media import audio
from whisper_stream.model.transcription import transcribe as transcription
from whisper_stream.model.weights import loading
from whisper_stream.model.whisper.languages import language_code

DATA = Path(__file__).parents[2] / "data"
JFK = DATA / "en-speech-jfk.wav"
FORMATS = ("txt", "vtt", "srt", "tsv", "json")
OWN_FLAGS = {"compute_type", "batch_size"}
# `whisper.transcribe` is a function: it hides its module.
reference_command = importlib.import_module("whisper.transcribe")


@pytest.fixture
def passed_on(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What our command gives to load_model and transcribe, which do nothing."""
    calls: list[dict[str, Any]] = []

    def load_model(name: str, **options: Any) -> str:
        calls.append({"model": name, **options})
        return "model"

    def transcribe(model: str, samples: object, **options: Any) -> dict[str, Any]:
        assert model == "model"
        calls.append(options)
        return {"text": "", "segments": [], "language": "en"}

    monkeypatch.setattr(loading, "load_model", load_model)
    monkeypatch.setattr(warmup, "warm_up", lambda model, on_slow: None)
    monkeypatch.setattr(transcription, "transcribe", transcribe)
    monkeypatch.setattr(audio, "load_audio", lambda path: np.zeros(16_000, np.float32))
    return calls


def _reference_call(argv: Sequence[str], tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the reference's command gives to transcribe, and to the writer."""
    seen: list[dict[str, Any]] = []

    def transcribe(model: object, path: str, **options: Any) -> dict[str, Any]:
        seen.append(options)
        return {}

    def writer(result: object, path: str, **options: Any) -> None:
        seen.append(options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference_command, "transcribe", transcribe)
        patch.setattr(reference_command, "get_writer", lambda *_: writer)
        patch.setattr(whisper, "load_model", lambda *_, **__: SimpleNamespace())
        patch.setattr(sys, "argv", ["whisper", *argv, "--output_dir", str(tmp_path)])
        reference_command.cli()
    return seen[0], seen[1]


@pytest.mark.parametrize(
    "argv",
    [
        "a.wav",
        "a.wav --model tiny.en",
        "a.wav --task translate --language German --verbose False --beam_size None",
        "a.wav --temperature 0.4 --temperature_increment_on_fallback None --best_of 3",
        "a.wav --patience 2 --length_penalty 0.5 --suppress_tokens 1,2 --fp16 False",
        "a.wav --initial_prompt Names --carry_initial_prompt True --clip_timestamps 1,2",
        "a.wav --condition_on_previous_text False --logprob_threshold None",
        "a.wav --compression_ratio_threshold 2 --no_speech_threshold 0.5 --temperature 0.1",
        "a.wav --word_timestamps True --prepend_punctuations ( --append_punctuations )",
        "a.wav --word_timestamps True --highlight_words True --max_line_width 40 --max_line_count 2",
        "a.wav --word_timestamps True --hallucination_silence_threshold 2 --max_words_per_line 3",
    ],
)
def test_transcribe_is_given_what_the_reference_gives_it(
    argv: str, tmp_path: Path, passed_on: list[dict[str, Any]]
) -> None:
    expected, subtitles = _reference_call(argv.split(), tmp_path)
    settings = parse_settings(argv.split())
    assert settings.subtitles == subtitles
    assert main(["transcribe", *argv.split(), "-o", str(tmp_path), "--batch-size", "3"]) == 0
    ours = passed_on[1]
    assert ours.pop("batch_size") == 3
    ours.pop("on_language")
    if expected["language"] is not None:
        expected["language"] = language_code(expected["language"])
    assert ours.pop("temperature") == tuple(expected.pop("temperature"))
    assert ours == expected


def test_the_model_is_loaded_once_and_as_asked(
    passed_on: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    flags = "--model base --device cpu --threads 3 --fp16 False --model_dir".split()
    assert main(["transcribe", "a.wav", "b.wav", *flags, str(tmp_path), "-o", str(tmp_path)]) == 0
    assert threads == [3]
    assert [call["model"] for call in passed_on if "model" in call] == ["base"]
    assert passed_on[0] == {
        "model": "base",
        "device": "cpu",
        "compute_type": "float32",
        "download_root": str(tmp_path),
    }
    assert len(passed_on) == 3


def test_a_download_is_announced(
    passed_on: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["transcribe", "a.wav", "-o", str(tmp_path)]) == 0
    line = capsys.readouterr().err
    assert line.startswith(
        "whisper-stream: notice: turbo is not on this machine: downloading 1,618"
    )
    assert line.count("\n") == 1


def test_the_model_is_not_loaded_for_files_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even the default model, which would be downloaded."""
    assert main(["transcribe", "/no/such.wav", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        "whisper-stream: error: /no/such.wav does not exist: check the path\n"
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One run over a good file between bad ones."""
    folder = tmp_path_factory.mktemp("run")
    notes = folder / "notes.mp3"
    notes.write_text("not audio at all\n" * 50)
    speech = shutil.copy(JFK, folder / "speech.of.1961.wav")
    command = [sys.executable, "-m", "whisper_stream.clients", "transcribe"]
    files = [str(folder / "gone.wav"), str(speech), str(notes)]
    flags = ["--model", "tiny.en", "--word-timestamps", "True", "--max_words_per_line", "4"]
    flags += ["--compute_type", "float32"]  # the same words on any processor
    done = subprocess.run(
        [*command, *files, *flags, "--output_dir", str(folder / "a" / "b")],
        capture_output=True,
        text=True,
    )
    yield SimpleNamespace(done=done, folder=folder, out=folder / "a" / "b")


def test_bad_files_do_not_stop_the_good_one(run: SimpleNamespace) -> None:
    assert run.done.returncode == 1
    lines = run.done.stderr.splitlines()
    heads = [line for line in lines if line.startswith("==> ")]
    assert len(heads) == 3 and all(line.endswith(" <==") for line in heads)
    assert lines.index(heads[1]) < lines.index(heads[2])
    assert "==>" not in run.done.stdout  # which is text alone
    gone, notes, summary = (line for line in lines if line not in heads)
    assert gone == (f"whisper-stream: error: {run.folder}/gone.wav does not exist: check the path")
    assert notes.startswith(f"whisper-stream: error: {run.folder}/notes.mp3 ")
    assert summary == "whisper-stream: error: 2 of 3 files failed"
    assert {path.name for path in run.out.iterdir()} == {f"speech.of.1961.{f}" for f in FORMATS}


def test_segments_are_printed_as_they_are_found(run: SimpleNamespace) -> None:
    lines = run.done.stdout.splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"\[\d\d:\d\d\.\d{3} --> \d\d:\d\d\.\d{3}\] .+", line)
    said = " ".join(line.split("] ")[1].strip() for line in lines)
    assert "ask what you can do for your country" in said


def test_the_files_are_those_the_reference_writes(run: SimpleNamespace, tmp_path: Path) -> None:
    """For the same result: the words, times and numbers are compared elsewhere."""
    result = json.loads((run.out / "speech.of.1961.json").read_text())
    assert result["segments"][0]["words"]
    write = whisper.utils.get_writer("all", str(tmp_path))
    write(result, "speech.of.1961.wav", None, max_words_per_line=4)
    for extension in FORMATS:
        name = f"speech.of.1961.{extension}"
        assert (run.out / name).read_bytes() == (tmp_path / name).read_bytes(), extension


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--model tiny.em", "--model: There is no model named 'tiny.em': did you mean tiny.en"),
        ("--beam_size two", "--beam_size: 'two' is not a whole number"),
        ("--temperature nan", "--temperature: 'nan' is not a number"),
        ("--verbose yes", "--verbose: 'yes' is neither True nor False"),
        ("--language klingon", "--language: language 'klingon' is not a language Whisper knows"),
        ("--output_format doc", "--output_format/-f: invalid choice: 'doc'"),
        ("--unknown 1", "unrecognized arguments: --unknown 1"),
        ("--highlight_words True", "--highlight_words requires --word_timestamps True"),
        ("--word_timestamps True --max_line_width -1", "--max_line_width must be at least 1"),
        ("--temperature_increment_on_fallback 0", "--temperature_increment_on_fallback must be"),
        ("--threads -1", "--threads must be from 0"),
        ("--batch_size 0", "--batch_size must be at least 1"),
        ("--patience 1 --beam_size None", "patience belongs to beam search"),
        ("--suppress_tokens a,b", "suppress_tokens must be token ids"),
        ("--fp16 False --compute_type float16", "--fp16 False and --compute_type float16 exclude"),
        ("--compute_type float8", "unknown compute_type 'float8'"),
        ("--device tpu9", "unknown device 'tpu9'"),
    ],
)
def test_bad_usage_names_the_flag_in_one_line(
    flags: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transcribe", str(JFK), *flags.split(), "-o", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"whisper-stream: error: {named}"), captured.err
    assert captured.err.count("\n") == 1


def test_options_that_only_transcribe_can_judge_are_usage_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = "--model tiny.en --clip_timestamps 1,x".split()
    assert main(["transcribe", str(JFK), str(JFK), *flags, "-o", str(tmp_path)]) == 2
    assert "error: clip_timestamps must be seconds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--model tiny.en --language de", "tiny.en knows English only: --language de is not used"),
        (
            "--word_timestamps True --max_line_count 2",
            "--max_line_count has no effect without --max_line_width",
        ),
        (
            "--word_timestamps True --max_words_per_line 2 --max_line_width 20",
            "--max_words_per_line has no effect with --max_line_width",
        ),
        (
            "--hallucination_silence_threshold 2",
            "--hallucination_silence_threshold has no effect without --word_timestamps True",
        ),
        ("b/a.mp3", "2 of the files are called a: the last one's transcript stays"),
    ],
)
def test_what_has_no_effect_is_told(flags: str, told: str) -> None:
    assert parse_settings(["a.wav", *flags.split()]).notices == (told,)


def test_a_folder_that_cannot_be_made_or_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], passed_on: list[dict[str, Any]]
) -> None:
    (tmp_path / "file").touch()
    assert main(["transcribe", "a.wav", "-o", str(tmp_path / "file" / "out")]) == 2
    assert f"--output_dir {tmp_path / 'file' / 'out'} cannot be made" in capsys.readouterr().err
    assert not passed_on
    (tmp_path / "a.txt").mkdir()
    assert main(["transcribe", "a.wav", "b.wav", "-o", str(tmp_path), "--model", "base"]) == 1
    head, first, other, summary = capsys.readouterr().err.splitlines()
    assert (head, other) == ("==> a.wav <==", "==> b.wav <==")
    assert f"{tmp_path / 'a.txt'} cannot be written (Is a directory)" in first
    assert "1 of 2 files failed" in summary
    assert (tmp_path / "b.txt").exists()


def test_a_fault_of_ours_stops_one_file_only(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    passed_on: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    empty: dict[str, Any] = {"text": "", "segments": [], "language": "en"}
    results: Iterator[dict[str, Any] | Exception] = iter([RuntimeError("broken"), empty])

    def transcribe(*_: object, **__: object) -> dict[str, Any]:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(transcription, "transcribe", transcribe)
    flags = ["--model", "base", "-o", str(tmp_path)]
    assert main(["transcribe", "a.wav", "b.wav", *flags]) == 1
    assert "error: a.wav failed (RuntimeError: broken)\n" in capsys.readouterr().err
    assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "b.txt").exists()


def test_nobody_reading_ends_the_command(
    tmp_path: Path, passed_on: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def transcribe(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(transcription, "transcribe", transcribe)
    from whisper_stream.clients.cli.transcribe import main as command

    with pytest.raises(BrokenPipeError):
        command(["a.wav", "--model", "base", "-o", str(tmp_path)])


def test_help_loads_nothing_slow() -> None:
    script = (
        "import sys; from whisper_stream.clients.cli.main import main; code = main(sys.argv[1:]);"
        "sys.stderr.write(' '.join(sys.modules)); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "transcribe", "--help"], capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "--hallucination_silence_threshold" in done.stdout
    assert not set(done.stderr.split()) & {"torch", "numpy", "av", "numba", "rich", "soxr"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--model small --clip_timestamps abc", "clip_timestamps must be seconds"),
        ("--model tiny.en --threads 9999999", "--threads must be from 0 to 512"),
        ("--model tiny.en --beam_size 2000", "--beam_size must be at most 100"),
        ("--model tiny.en --best_of 2000", "--best_of must be at most 100"),
    ],
)
def test_nonsense_is_refused_before_a_model_is_fetched(
    flags: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(JFK), *flags.split(), "--model_dir", str(tmp_path / "models")]
    assert main(["transcribe", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


def test_a_cut_file_is_transcribed_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[int] = []

    def transcribe(model: str, samples: Any, **options: Any) -> dict[str, Any]:
        heard.append(len(samples))
        return {"text": "", "segments": [], "language": "en"}

    monkeypatch.setattr(loading, "load_model", lambda *_, **__: "model")
    monkeypatch.setattr(warmup, "warm_up", lambda model, on_slow: None)
    monkeypatch.setattr(transcription, "transcribe", transcribe)
    cut = tmp_path / "cut.wav"
    cut.write_bytes(JFK.read_bytes()[: -8 * 4 * 44_100])
    assert main(["transcribe", str(cut), str(JFK), "-o", str(tmp_path), "--model", "tiny.en"]) == 0
    assert heard == [3 * 16_000, 11 * 16_000]
    said = f"{cut} ends after 3.0 s; its header says 11.0 s: the rest is missing"
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "==>" not in line] == [f"whisper-stream: warning: {said}"]
