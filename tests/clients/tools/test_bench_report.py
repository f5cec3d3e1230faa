"""The figures of a benchmark, its table and its picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from whisper_stream.clients.tools.bench_metrics import CommittedWord, Erasure
from whisper_stream.clients.tools.bench_plot import draw
from whisper_stream.clients.tools.bench_report import summary, table
from whisper_stream.clients.tools.bench_run import BenchResult, PlainRun
from whisper_stream.clients.tools.bench_scoring import ErrorCount

from ...helpers.texts import png_size


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
