"""Dynamic time warping on the GPU, many matrices at once, as a Triton kernel.

Import it only where Triton is. Cells of one anti-diagonal do not depend on each other: a program
takes one matrix, and goes through its diagonals with one lane for each row. Sums and ties are
those of the loop on the CPU, so the path is the same to the last step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["row_starts"]


@triton.jit(do_not_specialize=["N", "M"])  # type: ignore[untyped-decorator]
def _dtw_kernel(  # type: ignore[no-untyped-def]
    cost_ptr,  # [B, N, M] float32
    move_ptr,  # [B, N, M] int8: 0 both, 1 row, 2 column
    ring_ptr,  # [B, 3, BLOCK] float32: totals of the last three diagonals, by row
    start_ptr,  # [B, N] int32
    rows_ptr,  # [B] int32
    columns_ptr,  # [B] int32
    N,
    M,
    BLOCK: tl.constexpr,
):
    matrix = tl.program_id(0).to(tl.int64)
    rows = tl.load(rows_ptr + matrix)
    columns = tl.load(columns_ptr + matrix)
    cost_ptr += matrix * N * M
    move_ptr += matrix * N * M
    start_ptr += matrix * N
    ring_ptr += matrix * 3 * BLOCK
    # Cells are numbered from 1; row and column 0 are the border: infinite but for the corner.
    i = tl.arange(0, BLOCK)
    infinite = tl.full((BLOCK,), float("inf"), tl.float32)
    tl.store(ring_ptr + i, tl.where(i == 0, 0.0, infinite))
    tl.store(ring_ptr + BLOCK + i, infinite)
    for diagonal in range(2, rows + columns + 1):
        tl.debug_barrier()  # the diagonals before are written
        j = diagonal - i
        inside = (i > 0) & (i <= rows) & (j > 0) & (j <= columns)
        last = ring_ptr + ((diagonal - 1) % 3) * BLOCK
        both = tl.load(ring_ptr + ((diagonal - 2) % 3) * BLOCK + i - 1, mask=inside, other=0.0)
        row = tl.load(last + i - 1, mask=inside, other=0.0)
        column = tl.load(last + i, mask=inside, other=0.0)
        by_row = (row < both) & (row < column)
        by_both = (both < row) & (both < column)
        best = tl.where(by_both, both, tl.where(by_row, row, column))
        move = tl.where(by_both, 0, tl.where(by_row, 1, 2))
        cell = (i - 1) * M + j - 1
        total = tl.load(cost_ptr + cell, mask=inside, other=0.0) + best
        tl.store(ring_ptr + (diagonal % 3) * BLOCK + i, tl.where(inside, total, infinite))
        tl.store(move_ptr + cell, move.to(tl.int8), mask=inside)
    tl.debug_barrier()  # all moves are written
    y = rows
    x = columns
    while (y > 0) & (x > 0):
        # going back, the last column written for a row is the one at which the path enters it
        tl.store(start_ptr + y - 1, x - 1)
        step = tl.load(move_ptr + (y - 1) * M + x - 1)
        y -= tl.where(step == 2, 0, 1)
        x -= tl.where(step == 1, 0, 1)


def row_starts(cost: Tensor, rows: Tensor | None = None, columns: Tensor | None = None) -> Tensor:
    """The column at which the cheapest path from corner to corner enters each row.

    Args:
        cost: ``[B, N, M]`` float32.
        rows, columns: ``[B]``, how much of each matrix counts where they are padded; all if None.

    Returns:
        ``[B, N]`` int32; rows that do not count are 0.
    """
    batch, n, m = cost.shape
    starts = torch.zeros((batch, n), dtype=torch.int32, device=cost.device)
    if starts.numel() == 0:
        return starts
    block = 64 if n < 64 else triton.next_power_of_2(n + 1)  # few variants to compile
    moves = torch.empty((batch, n, m), dtype=torch.int8, device=cost.device)
    ring = torch.empty((batch, 3, block), dtype=torch.float32, device=cost.device)
    _dtw_kernel[(batch,)](
        cost.float().contiguous(),
        moves,
        ring,
        starts,
        _lengths(rows, n, cost),
        _lengths(columns, m, cost),
        n,
        m,
        BLOCK=block,
        enable_fp_fusion=False,  # sums as on the CPU
    )
    return starts


def _lengths(given: Tensor | None, most: int, cost: Tensor) -> Tensor:
    if given is not None:
        return given.to(cost.device, torch.int32).contiguous()  # the kernel knows no strides
    return torch.full((cost.shape[0],), most, dtype=torch.int32, device=cost.device)
