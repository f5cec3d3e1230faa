"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

# before torch loads: several processes share the cores here, and spinning threads starve them all
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import hypothesis
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from whisper_stream.model.media.audio import load_audio
from whisper_stream.model.weights.loading import load_model
from whisper_stream.model.whisper.network import Whisper

from .plugins.loop_guard import LoopGuard
from .plugins.requirements import Requirements

torch.set_num_threads(2)

# The same examples in every run, so that a red suite means a change. EXPLORE=1 looks for new ones.
hypothesis.settings.register_profile("steady", derandomize=not os.environ.get("EXPLORE"))
hypothesis.settings.load_profile("steady")

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny_en() -> Whisper:
    """The tiny.en model in float32."""
    return load_model("tiny.en", device="cpu", compute_type="float32")


@pytest.fixture(scope="session")
def jfk() -> NDArray[np.float32]:
    """11 s of a speech, [samples] at 16 kHz."""
    return load_audio(DATA / "en-speech-jfk.wav")


def pytest_configure(config: pytest.Config) -> None:
    for plugin in (Requirements(), LoopGuard()):
        config.pluginmanager.register(plugin)
