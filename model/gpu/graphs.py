"""Decoder steps captured as CUDA graphs: one for every number of rows, launched with one call.

A step of few rows takes less time on the GPU than its hundreds of launches take on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["StepGraphs"]

_ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    inputs: Tensor  # int32, on the device
    outputs: Tensor
    host_in: Tensor  # pinned
    graph: torch.cuda.CUDAGraph


class StepGraphs:
    """Runs a step from the graph that was captured for its number of rows, or a few more.

    Args:
        step: from numbers [B, columns] to numbers [2, ...], int32, all on the device.
        padding: [columns], the row with which a step is filled up to a number of rows that is captured.
        most: rows that are run at once.
        pool: the memory that graphs share.
    """

    def __init__(
        self, step: Callable[[Tensor], Tensor], padding: NDArray[np.int32], most: int, pool: Any
    ) -> None:
        self._step = step
        self._padding = padding
        self._sizes = [rows for rows in _ROWS if rows < most] + [most]
        self._pool = pool
        self._captured: dict[int, _Captured] = {}

    def capture_all(self) -> None:
        """Capture every number of rows, so that no step waits for that."""
        for rows in reversed(self._sizes):  # the largest first: the others fit in its memory
            self._get(rows)

    def graph(self, rows: int) -> torch.cuda.CUDAGraph:
        """Return the captured step of ``rows`` rows, or a few more."""
        return self._get(self._size(rows)).graph

    def __call__(self, numbers: NDArray[np.int32]) -> Tensor:
        """Run a step of ``numbers`` [B, columns]; return [2, captured rows, ...] on the device.

        Nothing is waited for; but the last answer must have been fetched before the next call.
        """
        rows = len(numbers)
        captured = self._get(self._size(rows))
        table = captured.host_in.numpy()
        table[:rows] = numbers
        table[rows:] = self._padding
        captured.inputs.copy_(captured.host_in, non_blocking=True)
        captured.graph.replay()
        # a copy: graphs share their memory, and the next one to run may write over it
        return captured.outputs.clone()

    def _size(self, rows: int) -> int:
        return next(size for size in self._sizes if size >= rows)

    def _get(self, rows: int) -> _Captured:
        if rows not in self._captured:
            self._captured[rows] = self._capture(rows)
        return self._captured[rows]

    def _capture(self, rows: int) -> _Captured:
        host_in = torch.from_numpy(np.tile(self._padding, (rows, 1))).pin_memory()
        inputs = host_in.cuda()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(inputs)  # compiles the kernels, and gets the libraries ready
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = self._step(inputs)
        return _Captured(inputs, outputs, host_in, graph)
