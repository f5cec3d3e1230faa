"""Median filter, dynamic time warping and token times against independent ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import whisper.timing
import whisper.tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from whisper_stream.model.align import alignment_cost, median_filter, token_times
from whisper_stream.model.cpu.alignment import dtw
from whisper_stream.model.whisper.mel import log_mel_spectrogram

from ..helpers.reference import our_model, reference_model

# the reference leaves its vocabulary file open
pytestmark = pytest.mark.filterwarnings("ignore:.*tiktoken")

FLOATS = st.floats(-10, 10, width=32)


@settings(deadline=None)
@given(
    rows=st.integers(1, 3).flatmap(
        lambda n: st.integers(1, 20).flatmap(lambda m: arrays(np.float32, (n, m), elements=FLOATS))
    ),
    width=st.sampled_from([1, 3, 5, 7]),
)
def test_median_filter_equals_numpy(rows: NDArray[np.float32], width: int) -> None:
    half = width // 2
    expected = rows
    if rows.shape[1] > half:
        mirrored = np.pad(rows, ((0, 0), (half, half)), mode="reflect")
        expected = np.stack(
            [np.median(mirrored[:, i : i + width], axis=1) for i in range(rows.shape[1])], axis=1
        )
    assert median_filter(torch.from_numpy(rows), width).tolist() == expected.tolist()


@pytest.mark.parametrize("width", [0, -3, 4])
def test_a_median_of_even_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="odd"):
        median_filter(torch.zeros(3, 9), width)


# small whole numbers make ties, where the choice of move shows
@settings(deadline=None)
@given(
    cost=st.tuples(st.integers(1, 12), st.integers(1, 20)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=FLOATS | st.sampled_from([0.0, 1.0, 2.0]))
    )
)
def test_dtw_equals_the_reference(cost: NDArray[np.float32]) -> None:
    rows, columns = dtw(cost)
    expected_rows, expected_columns = whisper.timing.dtw_cpu(cost.astype(np.float64))
    assert (rows[0], columns[0], rows[-1], columns[-1]) == (
        0,
        0,
        cost.shape[0] - 1,
        cost.shape[1] - 1,
    )
    path = cost[rows, columns].sum(dtype=np.float64)
    assert path == pytest.approx(
        cost[expected_rows, expected_columns].sum(dtype=np.float64), abs=1e-3
    )


@settings(deadline=None)
@given(
    cost=st.tuples(st.integers(1, 10), st.integers(1, 20)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.sampled_from([0.0, 1.0, 2.0, -1.0]))
    )
)
def test_dtw_takes_the_reference_path_at_ties(cost: NDArray[np.float32]) -> None:
    rows, columns = dtw(cost)
    expected_rows, expected_columns = whisper.timing.dtw_cpu(cost.astype(np.float64))
    assert (rows.tolist(), columns.tolist()) == (
        expected_rows.tolist(),
        expected_columns.tolist(),
    )


def test_token_times_of_a_clear_path() -> None:
    cost = torch.ones(3, 10)
    cost[0, :4], cost[1, 4:5], cost[2, 5:] = -1.0, -1.0, -1.0
    assert token_times(cost).tolist() == pytest.approx([0.0, 0.08, 0.1])


@torch.inference_mode()
def test_times_of_real_speech_equal_the_reference(jfk: NDArray[np.float32]) -> None:
    model, reference = our_model("tiny.en"), reference_model("tiny.en")
    tokenizer = whisper.tokenizer.get_tokenizer(False)
    text = tokenizer.encode(
        " And so my fellow Americans ask not what your country can do for you ask what you can do"
        " for your country."
    )
    frames = len(jfk) // 160
    mel = log_mel_spectrogram(np.pad(jfk, (0, 480_000 - len(jfk))))
    timings = whisper.timing.find_alignment(reference, tokenizer, text, mel, frames)
    tokens = [*tokenizer.sot_sequence, tokenizer.no_timestamps, *text, tokenizer.eot]
    _, scores = model.decoder(
        torch.tensor([tokens]),
        torch.arange(len(tokens))[None],
        model.decoder.new_cache(1),
        model.decoder.audio_cache(model.embed_audio(mel[None])),
        start=0,
        heads=model.heads_by_layer,
    )
    assert scores is not None
    cost = alignment_cost(scores[0], frames // 2, skip=len(tokenizer.sot_sequence))
    times = token_times(cost[:-1])  # the end's own row is of no word
    assert len(times) == len(text) + 1
    at = 0
    for timing in timings:
        if not timing.tokens or timing.tokens == [tokenizer.eot]:
            continue
        assert times[at] == pytest.approx(timing.start, abs=0.0201)
        at += len(timing.tokens)
        assert times[at] == pytest.approx(timing.end, abs=0.0201)
    assert at == len(text)
