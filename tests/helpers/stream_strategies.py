"""Streams as hypothesis draws them: speech with pauses, and options."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from whisper_stream.streamer.config import StreamConfig
from whisper_stream.streamer.events import Word

from .scripted import Script, scripted

Samples = NDArray[np.float32]

relaxed = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# gaps between words, in seconds: inside a phrase, a short pause, an endpoint, a long silence
GAPS = st.lists(
    st.sampled_from([0.06, 0.1, 0.15, 0.2, 0.45, 0.8, 1.1, 2.5, 9.0]), min_size=1, max_size=50
)

CONFIGS = st.builds(
    StreamConfig,
    language=st.sampled_from([None, "en"]),
    prompt=st.sampled_from(["", "Vocabulary", "x" * 300]),
    agreement=st.sampled_from([2, 3]),
    update_interval=st.sampled_from([0.2, 0.5, 1.5]),
    endpoint_silence=st.sampled_from([0.05, 0.3, 0.6, 1.5]),
    preroll=st.sampled_from([0.0, 0.4]),
    soft_window=st.sampled_from([1.5, 4.0]),
    max_window=st.sampled_from([4.0, 7.5]),
    commit_margin=st.sampled_from([0.0, 0.2]),
    context_silence=st.sampled_from([0.0, 2.0]),
    context_seconds=st.sampled_from([0.0, 5.0]),
    buffer_seconds=st.sampled_from([8.5, 20.0]),
    condition_on_previous=st.booleans(),
    policy=st.sampled_from(["local-agreement", "align-att", "either"]),
    attention_margin=st.sampled_from([0.05, 0.6, 1.2]),
    show_margin=st.sampled_from([0.0, 0.15]),
    max_segment=st.sampled_from([1.0, 3.0, 30.0]),
    languages=st.sampled_from([(), ("en", "de")]),
    hotwords=st.sampled_from(["", "Nguyen"]),
    carry_prompt=st.booleans(),
)


def scripts(gaps: st.SearchStrategy[list[float]] = GAPS) -> st.SearchStrategy[Script]:
    return st.builds(scripted, gaps, tail=st.sampled_from([0.0, 0.2, 3.0]))


def texts(words: list[Word]) -> list[str]:
    return [word.text for word in words]
