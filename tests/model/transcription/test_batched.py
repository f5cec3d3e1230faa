"""Windows for batches: within the limit, in order, with all speech, cut in silence."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whisper_stream.model.transcription import batched as chunks
from whisper_stream.model.transcription.batched import plan_windows

FRAME = 480  # samples of one decision of the detector

_runs = st.lists(st.tuples(st.booleans(), st.integers(1, 900)), min_size=1, max_size=12)


@settings(max_examples=100, deadline=None)
@given(runs=_runs)
def test_all_speech_lies_in_windows_of_thirty_seconds(runs: list[tuple[bool, int]]) -> None:
    flags = np.concatenate([np.full(length, speech) for speech, length in runs])
    samples = np.zeros(len(flags) * FRAME, np.float32)
    with mock.patch.object(chunks, "speech_flags", lambda _: flags):
        planned = plan_windows(samples, [(0, len(samples) // 160)])
    covered = np.zeros(len(flags) * 3, bool)
    last = 0
    for chunk in planned:
        begin, end = chunk.span.seek, chunk.span.seek + chunk.span.frames
        assert 0 < chunk.span.frames <= 3000
        assert last <= begin < chunk.speech_end <= end
        covered[begin:end] = True
        last = end
    assert covered[np.repeat(flags, 3)].all()


@pytest.mark.parametrize("silence_at", [600, 800, 950])
def test_the_cut_falls_into_the_longest_silence(silence_at: int) -> None:
    flags = np.ones(1500, bool)
    flags[silence_at : silence_at + 20] = False
    flags[700:705] = False
    with mock.patch.object(chunks, "speech_flags", lambda _: flags):
        planned = plan_windows(np.zeros(1500 * FRAME, np.float32), [(0, 4500)])
    assert planned[0].span.frames == (silence_at + 10) * 3


def test_without_silence_the_cut_is_the_quietest_moment() -> None:
    samples = np.full(1500 * FRAME, 0.5, np.float32)
    samples[900 * FRAME : 901 * FRAME] = 0.1
    with mock.patch.object(chunks, "speech_flags", lambda _: np.ones(1500, bool)):
        planned = plan_windows(samples, [(0, 4500)])
    assert planned[0].span.frames == 900 * 3


def test_silence_has_no_windows() -> None:
    assert plan_windows(np.zeros(16_000 * 5, np.float32), [(0, 500)]) == []


def test_clips_are_planned_apart_and_end_with_the_audio() -> None:
    with mock.patch.object(
        chunks, "speech_flags", lambda clip: np.ones(-(-len(clip) // 480), bool)
    ):
        planned = plan_windows(np.zeros(16_000 * 10, np.float32), [(100, 200), (400, 9000)])
    spans = [(chunk.span.seek, chunk.span.frames) for chunk in planned]
    assert spans == [(100, 100), (400, 600)]
