"""Token times from cross-attention: the alignment heads' scores, cleaned and warped onto the text.

Source: "Robust Speech Recognition via Large-Scale Weak Supervision", and the word timestamps of the
published implementation: softmax over the frames, normalise over the tokens, median filter over
time, mean over heads, then dynamic time warping. On a GPU, filter and warping are Triton kernels.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from .gpu.triton_fallback import try_kernel

__all__ = [
    "MEDIAN_WIDTH",
    "SECONDS_PER_FRAME",
    "alignment_cost",
    "attended_times",
    "median_filter",
    "token_times",
]

MEDIAN_WIDTH = 7  # encoder frames
SECONDS_PER_FRAME = 0.02  # of encoder output


def median_filter(x: Tensor, width: int) -> Tensor:
    """Running median over the last dimension, mirrored at the ends; ``x`` is returned as it is where too short.

    ``x``: [..., length]; ``width`` must be odd.
    """
    if width < 1 or width % 2 == 0:
        raise ValueError(f"the median's width must be odd and positive, not {width}")
    half = width // 2
    if x.shape[-1] <= half or width == 1:
        return x
    if x.is_cuda and x.dtype == torch.float32:
        rows = try_kernel("triton_median", "median_rows", x.reshape(-1, x.shape[-1]), width)
        if rows is not None:
            return rows.reshape(x.shape)
    if not x.is_cuda and x.dtype == torch.float32 and width == MEDIAN_WIDTH:
        from .cpu.alignment import median_of_seven  # numba is slow to import

        return torch.from_numpy(median_of_seven(x.reshape(-1, x.shape[-1]).numpy())).view(x.shape)
    flat = x.reshape(1, -1, x.shape[-1])  # reflect padding wants 3 dimensions
    padded = F.pad(flat, (half, half), mode="reflect")
    windows = padded.unfold(-1, width, 1)  # [1, rows, length, width]
    median = windows.sort(dim=-1).values[..., half]
    return median.reshape(x.shape)


def alignment_cost(
    scores: Tensor, frames: int, *, skip: int = 0, width: int = MEDIAN_WIDTH
) -> Tensor:
    """How badly each token fits each frame, from attention scores before the softmax.

    ``scores`` [heads, tokens, S]; only the first ``frames`` of S hold audio of interest. The first
    ``skip`` tokens count in the normalisation but get no row of their own.
    Returns [tokens - skip, frames] in float32.
    """
    weights = scores[:, :, :frames].float().softmax(dim=-1)
    std, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    weights = (weights - mean) / std
    return -median_filter(weights, width).mean(dim=0)[skip:]


def attended_times(scores: Tensor) -> NDArray[np.float64]:
    """Where each token's heads together look most: ``scores`` [heads, tokens, S] -> seconds [tokens]."""
    weights = scores.float().softmax(dim=-1).mean(dim=0)  # [tokens, S]
    seconds: NDArray[np.float64] = weights.argmax(dim=-1).cpu().double().numpy() * SECONDS_PER_FRAME
    return seconds


def token_times(cost: Tensor) -> NDArray[np.float64]:
    """``cost`` [tokens, frames] -> the time in seconds at which the path enters each token's row.

    Row i belongs to the query that predicted token i, so entry i is where token i starts, and the
    entry after the last token of a word is where the word ends.
    """
    if cost.is_cuda:
        starts = try_kernel("triton_dtw", "row_starts", cost[None])
        if starts is not None:
            seconds: NDArray[np.float64] = (starts[0].cpu().double() * SECONDS_PER_FRAME).numpy()
            return seconds
    from .cpu.alignment import dtw  # numba is slow to import: only those who want times pay for it

    rows, columns = dtw(cost.cpu().numpy())
    enters = np.concatenate(([True], np.diff(rows) > 0))
    times: NDArray[np.float64] = columns[enters].astype(np.float64) * SECONDS_PER_FRAME
    return times
