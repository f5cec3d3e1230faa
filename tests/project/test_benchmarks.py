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


@pytest.mark.timeout(120)  # real daemons are started and stopped several times
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


@pytest.mark.parametrize("folder", ["gpu", "accuracy"])
def test_scripts_that_no_test_runs_can_be_imported(folder: str) -> None:
    """A name that has changed elsewhere is found here, and not on the machine that they are meant for."""
    names = sorted(path.stem for path in (ROOT / "benchmarks" / folder).glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-c", f"import {', '.join(names)}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"benchmarks/{folder}:{os.environ.get('PYTHONPATH', '')}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr


SCRIPTED = """
import torch
import numpy as np
from rig import random_model
from scripted import ScriptedBackend
from whisper_stream.streamer.jobs import DecodeJob

text = [400, 500, 600, 700]
model = random_model("tiny", dtype=torch.float32, device="cpu")
backend = ScriptedBackend(model, slots=2, searches=1, script=lambda job: text)
noise = np.random.default_rng(0).normal(0.0, 0.01, 16_000).astype(np.float32)
jobs = [DecodeJob(audio=noise, language="en", endpoint=endpoint) for endpoint in (False, True)]
assert [list(result.tokens) for result in backend.decode(jobs)] == [text, text]
"""


def test_random_weights_say_the_text_that_a_load_is_measured_with() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPTED],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"benchmarks/gpu:{os.environ.get('PYTHONPATH', '')}"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
