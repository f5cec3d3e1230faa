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

    Every row has its own length: the caller says at which positions new entries go, and a query at
    position p attends to entries 0..p. What lies beyond is stale and never seen, so a row is
    shortened (a rejected draft, a new sequence) simply by writing at an earlier position.
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

    def update(
        self, layer: int, positions: Tensor, start: int | None, k: Tensor, v: Tensor
    ) -> None:
        """Writes ``k`` and ``v`` [B, H, T, d] at ``positions`` [B, T].

        ``start`` is the common first position when all rows stand at the same place (a plain slice
        write then), None when they differ.
        """
        if start is not None:
            end = start + k.shape[2]
            self.k[layer, :, :, start:end] = k
            self.v[layer, :, :, start:end] = v
            return
        rows = torch.arange(k.shape[0], device=k.device)[:, None]  # [B, 1]
        self.k[layer][rows, :, positions] = k.transpose(1, 2)  # [B, T, H, d]
        self.v[layer][rows, :, positions] = v.transpose(1, 2)  # [B, T, H, d]

    def reorder(self, source_rows: Sequence[int], *, length: int) -> None:
        """Row i becomes a copy of row ``source_rows[i]`` (beam search), as far as ``length`` tokens."""
        moved = [row for row, source in enumerate(source_rows) if row != source]
        if not moved:
            return
        sources = [source_rows[row] for row in moved]
        # the right side is a copy, so rows may trade places
        self.k[:, moved, :, :length] = self.k[:, sources, :, :length]
        self.v[:, moved, :, :length] = self.v[:, sources, :, :length]

    def repeat(self, times: int, *, room: int | None = None) -> None:
        """Every row ``times`` times in a row, for several candidates of one window.

        With ``room`` for so many tokens afterwards; None keeps what there is.
        """
        self.k = self.k[:, :, :, :room].repeat_interleave(times, dim=1)
        self.v = self.v[:, :, :, :room].repeat_interleave(times, dim=1)


class CrossCache:
    """Keys and values of the audio features, computed once a window.

    ``lengths`` [B] are the true numbers of audio positions where rows differ; None: all are true.
    """

    def __init__(self, k: list[Tensor], v: list[Tensor], lengths: Tensor | None = None) -> None:
        self.k = k  # per layer [B, H, S, d]
        self.v = v
        self.lengths = lengths
        self.mask: Tensor | None = None  # [B, 1, 1, S], True where a key may be seen
        if lengths is not None:
            positions = torch.arange(k[0].shape[2], device=k[0].device)
            self.mask = (positions[None, :] < lengths[:, None])[:, None, None, :]

    @cached_property
    def bits(self) -> list[tuple[NDArray[np.int16], NDArray[np.int16]]]:
        """bf16 keys and values of every layer as what numpy has instead, for kernels."""
        return [
            (k.view(torch.int16).numpy(), v.view(torch.int16).numpy())
            for k, v in zip(self.k, self.v, strict=True)
        ]

    def repeat(self, times: int) -> CrossCache:
        """Every row ``times`` times in a row, for several candidates of one window."""
        if times == 1:
            return self
        return CrossCache(
            [k.repeat_interleave(times, dim=0) for k in self.k],
            [v.repeat_interleave(times, dim=0) for v in self.v],
            None if self.lengths is None else self.lengths.repeat_interleave(times),
        )
