"""A running median on the GPU, as a Triton kernel. Import it only where Triton is."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["median_rows"]

_BLOCK = 256  # results of one program


@triton.jit
def _mirrored(at, length):  # type: ignore[no-untyped-def]
    """Indices beyond either end, folded back; the value at the end itself is not repeated."""
    at = tl.where(at < 0, -at, at)
    at = tl.where(at >= length, 2 * (length - 1) - at, at)
    return tl.where(at < 0, 0, at)  # of a row too short to be mirrored


@triton.jit(do_not_specialize=["stride"])  # type: ignore[untyped-decorator]
def _median_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    out_ptr,
    length_ptr,
    stride,
    RAGGED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: BLOCK results of one row. A value's rank in its window is counted, not sorted for.

    A value's rank is how many come before it: smaller ones, and equal ones further left, so that
    exactly one value of each window has the middle rank. NaN counts as the largest, as in torch.
    """
    row = tl.program_id(0).to(tl.int64) * stride
    length = stride
    if RAGGED:
        length = tl.load(length_ptr + tl.program_id(0))
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < length
    half: tl.constexpr = WIDTH // 2
    median = tl.full((BLOCK,), 0.0, tl.float32)
    for one in tl.static_range(WIDTH):
        where = _mirrored(at + one - half, length)
        value = tl.load(x_ptr + row + where, mask=inside, other=0.0)
        rank = tl.full((BLOCK,), 0, tl.int32)
        for two in tl.static_range(WIDTH):
            # read again rather than kept: all of it lies in the nearest cache
            where = _mirrored(at + two - half, length)
            other = tl.load(x_ptr + row + where, mask=inside, other=0.0)
            before = (other < value) | ((value != value) & (other == other))
            if two < one:
                before = before | (other == value) | ((value != value) & (other != other))
            rank += before.to(tl.int32)
        median = tl.where(rank == half, value, median)
    # as the CPU does: a row too short to be mirrored stays as it is
    median = tl.where(length > half, median, tl.load(x_ptr + row + at, mask=inside, other=0.0))
    tl.store(out_ptr + row + at, median, mask=inside)


def median_rows(x: Tensor, width: int, lengths: Tensor | None = None) -> Tensor:
    """Running median over the last dimension of ``x`` [rows, length] float32, mirrored at the ends.

    ``width`` must be odd. ``lengths`` [rows] int32: where rows end, if not all are whole; what lies beyond
    is not to be used. A row that is not longer than half of ``width`` stays as it is.
    """
    x = x.contiguous()
    rows, length = x.shape
    out = torch.empty_like(x)
    if out.numel():
        _median_kernel[(rows, triton.cdiv(length, _BLOCK))](
            x,
            out,
            x if lengths is None else lengths.contiguous(),
            length,
            RAGGED=lengths is not None,
            WIDTH=width,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )
    return out
