"""The compiled running median against sorting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from whisper_stream.model.align import median_filter
from whisper_stream.model.cpu.alignment import median_of_seven

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("length", [4, 5, 7, 100, 1500])
@pytest.mark.parametrize("kind", ["any", "ties", "rising", "with NaN"])
def test_it_is_the_fourth_of_seven_sorted(length: int, kind: str) -> None:
    x = RNG.normal(size=(6, length)).astype(np.float32)
    if kind == "ties":
        x = np.round(x)
    elif kind == "rising":
        x = np.sort(x, axis=1)
    elif kind == "with NaN":
        x[RNG.random(x.shape) < 0.4] = np.nan  # sorted last
    given = x.copy()
    padded = np.pad(x, ((0, 0), (3, 3)), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 7, axis=1)
    expected = np.sort(windows, axis=-1)[..., 3]
    assert np.array_equal(median_of_seven(x), expected, equal_nan=True)
    assert np.array_equal(x, given, equal_nan=True)


def test_every_order_of_seven_is_sorted_out() -> None:
    """Zeros and ones suffice: exchanges that are right for those are right for any numbers."""
    every = (np.arange(128)[:, None] >> np.arange(7) & 1).astype(np.float32)
    got = median_of_seven(every)[:, 3]
    assert np.array_equal(got, every.sum(axis=1) >= 4)


def test_alignment_takes_it_for_rows_of_any_shape() -> None:
    x = torch.from_numpy(RNG.normal(size=(2, 3, 40)).astype(np.float32))
    got = median_filter(x.transpose(0, 1), 7)
    assert got.shape == (3, 2, 40)
    rows = median_of_seven(x.transpose(0, 1).reshape(6, 40).numpy())
    assert np.array_equal(got.reshape(6, 40).numpy(), rows)
    # the plain way, which other widths and types take
    assert torch.equal(got.double(), median_filter(x.double().transpose(0, 1), 7))
