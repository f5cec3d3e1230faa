"""Tables of numbers for the GPU: one row per sequence, named columns, one copy.

A table is a numpy array of a structured type whose fields are four bytes wide. It travels as int32; on the
device its columns are cut out again, floats as the bits that they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["columns", "fetch", "send", "words"]


def words(table: NDArray[Any]) -> NDArray[np.int32]:
    """Return the rows of ``table`` [B] as int32 [B, words a row]."""
    return table.view(np.int32).reshape(len(table), -1)


def columns(table: Tensor, dtype: np.dtype[Any]) -> dict[str, Tensor]:
    """Cut ``table`` [B, words a row] into the fields of ``dtype``: [B], or [B, n] of a field with n numbers.

    They are views: contiguous where the table was sent transposed.
    """
    found: dict[str, Tensor] = {}
    assert dtype.fields is not None
    for name, (kind, offset, *_) in dtype.fields.items():
        begin, count = offset // 4, kind.itemsize // 4
        column = table[:, begin : begin + count] if kind.shape else table[:, begin]
        found[name] = column.view(torch.float32) if kind.base == np.float32 else column
    return found


def send(numbers: NDArray[np.int32], device: torch.device) -> Tensor:
    """Copy ``numbers`` to ``device``, without waiting for what runs there."""
    table = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type != "cuda":
        return table
    return table.pin_memory().to(device, non_blocking=True)


def fetch(numbers: Tensor, meanwhile: Callable[[], None]) -> NDArray[Any]:
    """Copy ``numbers`` to the host.

    Args:
        meanwhile: called before they are waited for: the device does the work that it asks for while the
            host looks at the numbers.
    """
    if not numbers.is_cuda:
        meanwhile()
        return numbers.numpy()
    host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    host.copy_(numbers, non_blocking=True)
    there = torch.cuda.Event()  # type: ignore[no-untyped-call]
    there.record()
    meanwhile()
    there.synchronize()
    return host.numpy()
