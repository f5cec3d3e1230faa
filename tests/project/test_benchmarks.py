"""The daemon's benchmarks in their short forms: each must pass, and end in one JSON object."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]

SHORT = {
    "kill_resume": ["--model", "scripted", "--moments", "2", "--speed", "10"],
    "loss_accounting": ["--streams", "25"],
    "soak": ["--hours", "0.05"],
    "fuzz": ["--inputs", "2000"],
    "ingress": ["--ingress", "1", "--streams", "3", "--seconds", "2", "--idle"],
    # The slack keeps the clock out of the test: what is judged here is that no word is lost.
    "fairness": ["--model", "scripted", "--speed", "10", "--repeat", "1", "--slack", "60"],
    "abuse": ["--wrong", "100", "--slow", "5", "--patience", "0.2"],
    "failures": ["--model", "scripted", "--speed", "0"],
    "overload": ["--model", "scripted", "--max-streams", "3", "--speed", "4", "--every", "0.2"]
    + ["--hold", "1.5"],
}
WANTED: dict[str, dict[str, Any]] = {
    "ingress": {"cores": None, "rows": None},
    "kill_resume": {"runs": 4, "equal": 4},
    "loss_accounting": {"unaccounted": 0},
    "soak": {"leaked": None},
    "fuzz": {"crashes": 0, "healthy_stream_unchanged": True},
    "fairness": {"words_alone": 88, "words_beside": 88},
    "abuse": {"descriptors_grown": 0, "secrets_or_tracebacks_logged": False},
    "failures": {"disk_full": None, "damaged_journal": None, "out_of_memory": None},
    "overload": {"accepted": 3, "lost": 0, "gaps": 0, "unexplained": 0},
}


def run(name: str, flags: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, f"benchmarks/daemon/{name}.py", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.stdout, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0, (figures, done.stderr)
    return figures


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", SHORT)
def test_short_form(name: str) -> None:
    figures = run(name, SHORT[name])
    assert figures["benchmark"] == name and figures["passed"] is True
    for figure, value in WANTED[name].items():
        assert figure in figures
        assert value is None or figures[figure] == value


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        ("accuracy/reference_equality.py", ["tests/data", "--modes", "words"]),
        ("accuracy/stream_conditions.py", ["tests/data", "--only", "drift,times"]),
        ("accuracy/streamed_wer.py", ["--kind", "song"]),
        ("gpu/equality.py", ["--models", "huge"]),
        ("gpu/streams.py", ["--dtype", "float8"]),
    ],
)
def test_names_that_are_not_known_are_refused(script: str, flags: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, f"benchmarks/{script}", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2
    assert f"invalid choice: '{flags[-1]}'" in done.stderr
