"""Fixtures shared by the tests."""

from __future__ import annotations

import os
from pathlib import Path

# before torch loads: several processes share the cores here, and spinning threads starve them all
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from numpy.typing import NDArray  # noqa: E402
from whisper_stream.model.audio import load_audio  # noqa: E402
from whisper_stream.model.loading import load_model  # noqa: E402
from whisper_stream.model.whisper import Whisper  # noqa: E402

torch.set_num_threads(2)

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def tiny_en() -> Whisper:
    """The tiny.en model in float32."""
    return load_model("tiny.en", device="cpu", compute_type="float32")


@pytest.fixture(scope="session")
def jfk() -> NDArray[np.float32]:
    """11 s of a speech, [samples] at 16 kHz."""
    return load_audio(DATA / "en-speech-jfk.wav")
