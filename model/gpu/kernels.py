"""The slot decoder's work between matrix products: plainly, on any device, or with Triton on a GPU.

The plain kernels are the reference of the others. Letters as in ``triton_attention.py``.
"""

from __future__ import annotations

import logging
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .triton_fallback import cannot_run

__all__ = ["PlainKernels", "SlotKernels", "TritonKernels", "make_kernels"]


_log = logging.getLogger(__name__)


class SlotKernels(Protocol):
    """Computes between the matrix products, on rows in slots."""

    def store(
        self,
        k: Tensor,
        v: Tensor,
        cache_k: Tensor,
        cache_v: Tensor,
        slots: Tensor,
        positions: Tensor,
    ) -> None:
        """Enter ``k`` and ``v`` [N, H, d] in the caches [slots, H, C, d], at ``positions`` of ``slots`` [N]."""
        ...

    def attend_text(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, positions: Tensor
    ) -> Tensor:
        """Attend from ``q`` [B, T, H, d] to the places of its row up to its own; return [B, T, H * d]."""
        ...

    def attend_audio(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        lengths: Tensor,
        tail: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Attend from ``q`` [B, T, H, d] to the audio of its row; return [B, T, H * d].

        Args:
            lengths: [B], positions of the slot that are seen.
            tail: keys and values [H, F, d] that follow, and the number of them [B] that a row sees.
        """
        ...

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        """Add ``delta`` to ``x`` [..., D] in place; return the layer norm of the sum."""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """Return the exact GELU; ``x`` is lost."""
        ...

    def choose(
        self,
        logits: Tensor,
        barred: Tensor,
        first: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        expected: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Choose a token for every row of ``logits`` [N, V]; return them, int32, and their log-probabilities.

        Args:
            barred: [2, V], added to the logits; its second row where ``first`` is 1.
            first: [N], 1 for the first token of a text.
            temperatures: [N]; 0 takes the likeliest token.
            expected: [N]; a token that is chosen however likely it is, or a negative number.
        """
        ...


class PlainKernels:
    """The kernels in PyTorch's own operations."""

    def store(
        self,
        k: Tensor,
        v: Tensor,
        cache_k: Tensor,
        cache_v: Tensor,
        slots: Tensor,
        positions: Tensor,
    ) -> None:
        cache_k[slots.long(), :, positions.long()] = k
        cache_v[slots.long(), :, positions.long()] = v

    def attend_text(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, positions: Tensor
    ) -> Tensor:
        end = int(positions.max()) + 1
        own_k, own_v = k[slots.long(), :, :end], v[slots.long(), :, :end]
        seen = torch.arange(end, device=q.device) <= positions[:, :, None]  # [B, T, end]
        return _attend(q, own_k, own_v, seen[:, None])

    def attend_audio(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slots: Tensor,
        lengths: Tensor,
        tail: tuple[Tensor, Tensor, Tensor] | None = None,
    ) -> Tensor:
        end = int(lengths.max())
        own_k, own_v = k[slots.long(), :, :end], v[slots.long(), :, :end]
        seen = torch.arange(end, device=q.device) < lengths[:, None]  # [B, end]
        if tail is not None:
            tail_k, tail_v, tail_lengths = tail
            rows = len(slots)
            own_k = torch.cat([own_k, tail_k.expand(rows, -1, -1, -1)], dim=2)
            own_v = torch.cat([own_v, tail_v.expand(rows, -1, -1, -1)], dim=2)
            more = torch.arange(tail_k.shape[1], device=q.device) < tail_lengths[:, None]
            seen = torch.cat([seen, more], dim=1)
        return _attend(q, own_k, own_v, seen[:, None, None])

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        if delta is not None:
            x += delta
        out: Tensor = norm(x)
        return out

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def choose(
        self,
        logits: Tensor,
        barred: Tensor,
        first: Tensor,
        temperatures: Tensor,
        seeds: Tensor,
        expected: Tensor,
    ) -> tuple[Tensor, Tensor]:
        logits = logits.float() + barred[first.long()]
        picked = logits.argmax(dim=-1)
        for row in torch.nonzero(temperatures > 0)[:, 0].tolist():
            generator = torch.Generator(device=logits.device).manual_seed(int(seeds[row]))
            chances = (logits[row] / temperatures[row]).softmax(dim=-1)
            picked[row] = torch.multinomial(chances, 1, generator=generator)[0]
        picked = torch.where(expected >= 0, expected.long(), picked)
        logprobs = logits.gather(1, picked[:, None])[:, 0] - logits.logsumexp(dim=-1)
        return picked.int(), logprobs


class TritonKernels:
    """The kernels in Triton, for a GPU.

    Raises:
        ImportError: there is no Triton.
    """

    def __init__(self) -> None:
        from . import triton_attention, triton_layers

        self._layers = triton_layers
        self.store = triton_attention.store
        self.attend_text = triton_attention.attend_text
        self.attend_audio = triton_attention.attend_audio
        self.gelu = triton_layers.gelu_
        self.choose = triton_layers.choose

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        return self._layers.add_norm(x, delta, norm.weight, norm.bias, norm.eps)


def make_kernels(device: torch.device) -> SlotKernels:
    """Return Triton's kernels on a GPU where they run, else the plain ones."""
    if device.type != "cuda":
        return PlainKernels()
    try:
        kernels = TritonKernels()
        kernels.gelu(torch.zeros(1, device=device))  # compiles, which wants a C compiler
    except Exception as error:
        if not cannot_run(error):
            raise
        _log.warning(
            "the GPU kernels cannot run (%s): decoding is several times as slow; install triton and gcc",
            type(error).__name__,
        )
        return PlainKernels()
    return kernels


def _attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """Attend from ``q`` [B, T, H, d] to ``k`` and ``v`` [B, H, F, d] where ``seen``; return [B, T, H * d]."""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen)
    return out.transpose(1, 2).flatten(2)
