"""Figures and tables of ``bench`` and ``load``."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.tools.bench_metrics import CommittedWord, Erasure
from whisper_stream.clients.tools.bench_run import PlainRun
from whisper_stream.clients.tools.report import (
    bench_figures,
    bench_table,
    keeps_up,
    load_figures,
    load_table,
    percentile,
    server_line,
)
from whisper_stream.clients.tools.scoring import ErrorCount, count_letter_errors

from ...helpers.measured import bench_result, load_run


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=60), st.integers(1, 99))
def test_percentiles_are_those_of_the_standard_library(values: list[float], percent: int) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
    assert percentile(values, percent) == pytest.approx(expected, abs=1e-9)


def test_percentiles_of_few_values() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0


def test_the_figures_of_a_run() -> None:
    figures = load_figures(load_run(), count_letter_errors)
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
    assert server_line(figures) == f"server: {expected}\n"
    nothing = dict.fromkeys(("memory_per_stream", "gpu_utilization", "gpu_memory"))
    assert server_line(figures | nothing) == ""


def test_the_table_has_a_line_for_each_stream() -> None:
    figures = load_figures(load_run(), count_letter_errors)
    lines = load_table([("0", figures["each"][1]), ("all", figures)], "stream").splitlines()
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


def test_the_summary_is_over_all_words_and_files() -> None:
    other = bench_result(
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
    noise = bench_result(
        file="n.wav",
        words=(),
        ends=(),
        errors=ErrorCount(1, 0),
        errors_offline=None,
        cpu_seconds=0.0,
    )
    found = bench_figures([bench_result(), other, noise], rss_mb=321.0)
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
    found = bench_figures([bench_result()], rss_mb=1.0, texts=True)
    assert found["files"][0]["text"] == "a b c"
    assert found["files"][0]["text_offline"] == "a b"


def test_the_savings_are_those_against_the_plain_run() -> None:
    plain = PlainRun(text="a b x", decoder_steps=60, cpu_seconds=8.0)
    found = bench_figures([bench_result(plain=plain)], rss_mb=1.0)
    assert found["decoder_steps_ratio"] == 0.5
    assert found["cpu_ratio"] == 0.25
    assert found["plain_differs"] == 1
    assert "committed words differ in 1 of 1 files" in bench_table(found)


def test_the_table_has_a_line_a_file_and_one_for_all() -> None:
    found = bench_figures(
        [bench_result(), bench_result(file="a-longer-name.wav", errors=None)], rss_mb=99.6
    )
    lines = bench_table(found).splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["a.wav", "a-longer-name.wav", "all"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[2].split()[1] == "-"  # no reference text, no error rate
    assert "memory while streaming: 100 MB at most" in lines
