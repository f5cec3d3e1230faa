"""Pictures of ``bench`` and ``load``."""

from __future__ import annotations

from pathlib import Path

from whisper_stream.clients.tools.plot import draw_bench, draw_load
from whisper_stream.clients.tools.report import load_figures
from whisper_stream.clients.tools.scoring import count_letter_errors

from ...helpers.measured import bench_result, load_run
from ...helpers.texts import png_size


def test_a_picture_of_several_recordings(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    draw_bench([bench_result(), bench_result(words=(), ends=()), bench_result(file="c.wav")], path)
    assert png_size(path) == (1100, 800)
    assert 5_000 < path.stat().st_size < 500_000


def test_the_picture_of_one_run_and_of_several(tmp_path: Path) -> None:
    figures = load_figures(load_run(), count_letter_errors)
    for runs in (
        [(figures, [1.0, 2.0])],
        [({**figures, "streams": 8, "commit_p95": None}, []), (figures, [1.0, 2.0])],
    ):
        path = tmp_path / f"{len(runs)}.png"
        draw_load(runs, 2.0, path)
        assert png_size(path) == (1100, 450)
