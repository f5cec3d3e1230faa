"""Dynamic time warping, compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .jit import compiled

__all__ = ["dtw"]


@compiled
def _path(cost: NDArray[np.float32]) -> Any:
    """Cheapest monotonic path through ``cost`` [N, M] from corner to corner, as two index arrays."""
    n, m = cost.shape
    total = np.full((n + 1, m + 1), np.inf, dtype=np.float32)
    move = np.zeros((n + 1, m + 1), dtype=np.int8)  # 0 both, 1 row, 2 column
    total[0, 0] = 0.0
    for j in range(1, m + 1):
        for i in range(1, n + 1):
            both, row, column = total[i - 1, j - 1], total[i - 1, j], total[i, j - 1]
            # ties go to the column move, as in the reference
            if both < row and both < column:
                best, step = both, 0
            elif row < both and row < column:
                best, step = row, 1
            else:
                best, step = column, 2
            total[i, j] = cost[i - 1, j - 1] + best
            move[i, j] = step
    for j in range(m + 1):
        move[0, j] = 2
    for i in range(1, n + 1):
        move[i, 0] = 1
    length = n + m
    rows = np.empty(length, dtype=np.int64)
    columns = np.empty(length, dtype=np.int64)
    i, j, at = n, m, length
    while i > 0 or j > 0:
        at -= 1
        rows[at] = i - 1
        columns[at] = j - 1
        taken = move[i, j]
        if taken == 0:
            i -= 1
            j -= 1
        elif taken == 1:
            i -= 1
        else:
            j -= 1
    return rows[at:], columns[at:]


def dtw(cost: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Aligns rows (tokens) to columns (frames): ``cost`` [N, M] -> row and column index of every path step."""
    rows, columns = _path(np.ascontiguousarray(cost, dtype=np.float32))
    return rows, columns
