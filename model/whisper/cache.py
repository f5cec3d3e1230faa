"""Preallocated key/value caches of the decoder, one row per sequence, positions always explicit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .dims import ModelDimensions

__all__ = ["CrossCache", "SelfCache"]


class SelfCache:
    """Keys and values of the tokens decoded so far.

    The caller says at which position new entries go, the same for all rows, and a query at position
    p attends to entries 0..p. Entries beyond are stale and never seen, so a sequence is shortened
    (a rejected draft, a new one) simply by writing at an earlier position.
    """

    def __init__(
        self, dims: ModelDimensions, rows: int, *, device: torch.device, dtype: torch.dtype
    ) -> None:
        heads = dims.n_text_head
        shape = (dims.n_text_layer, rows, heads, dims.n_text_ctx, dims.n_text_state // heads)
        self.k = torch.zeros(shape, device=device, dtype=dtype)  # [layer, B, H, C, d]
        self.v = torch.zeros(shape, device=device, dtype=dtype)  # [layer, B, H, C, d]

    @property
    def rows(self) -> int:
        return self.k.shape[1]

    def update(self, layer: int, start: int, k: Tensor, v: Tensor) -> None:
        """Write ``k`` and ``v`` [B, H, T, d] of ``layer`` at the positions from ``start`` on."""
        end = start + k.shape[2]
        self.k[layer, :, :, start:end] = k
        self.v[layer, :, :, start:end] = v

    def reorder(self, source_rows: Sequence[int], *, length: int) -> None:
        """Make row i a copy of row ``source_rows[i]`` (beam search), as far as ``length`` tokens."""
        moved = [row for row, source in enumerate(source_rows) if row != source]
        if not moved:
            return
        sources = [source_rows[row] for row in moved]
        # the right side is a copy, so rows may trade places
        self.k[:, moved, :, :length] = self.k[:, sources, :, :length]
        self.v[:, moved, :, :length] = self.v[:, sources, :, :length]

    def repeat(self, times: int, *, room: int | None = None) -> None:
        """Repeat every row ``times`` times in place, for several candidates of one window.

        Args:
            times: the copies of each row, which stand side by side.
            room: the positions to keep for each row; None keeps all.
        """
        self.k = self.k[:, :, :, :room].repeat_interleave(times, dim=1)
        self.v = self.v[:, :, :, :room].repeat_interleave(times, dim=1)


class CrossCache:
    """Keys and values of the audio features, computed once a window."""

    def __init__(self, k: list[Tensor], v: list[Tensor]) -> None:
        self.k = k  # per layer [B, H, F, d]
        self.v = v

    @cached_property
    def bits(self) -> list[tuple[NDArray[np.int16], NDArray[np.int16]]]:
        """The bf16 keys and values of every layer as int16, since numpy has no bf16, for kernels."""
        return [
            (k.view(torch.int16).numpy(), v.view(torch.int16).numpy())
            for k, v in zip(self.k, self.v, strict=True)
        ]
