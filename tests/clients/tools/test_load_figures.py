"""A load on paper: the search, plans, recordings and word errors, and the figures that are made of a run."""

from __future__ import annotations

import asyncio
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whisper_stream.clients.errors import SourceError, UsageError
from whisper_stream.clients.tools.load_clips import LoadClip, choose_language, read_clips
from whisper_stream.clients.tools.load_plan import (
    StreamPlan,
    find_capacity,
    join_references,
    make_plans,
    share_out,
)
from whisper_stream.clients.tools.load_plot import draw
from whisper_stream.clients.tools.load_report import figures_of, keeps_up, percentile, table, use_of
from whisper_stream.clients.tools.load_run import LoadRun
from whisper_stream.clients.tools.load_scoring import Errors, count_errors, units
from whisper_stream.clients.tools.load_worker import StreamOutcome

from ...helpers.texts import DATA, png_size

JFK = DATA / "en-speech-jfk.wav"


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
        assert png_size(path) == (1100, 450)
