"""What the slot decoder computes between matrix products: plainly, on any device, or with Triton on a GPU.

The plain one is the reference of the other. Letters as in ``triton_slots``.
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
    def store(
        self,
        k: Tensor,
        v: Tensor,
        cache_k: Tensor,
        cache_v: Tensor,
        slots: Tensor,
        positions: Tensor,
    ) -> None:
        """Enters ``k`` and ``v`` [N, H, d] in the caches [slots, H, C, d]."""
        ...

    def attend_text(
        self, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, positions: Tensor
    ) -> Tensor:
        """``q`` [R, W, H, d] over the places of its row up to its own -> [R, W, H * d]"""
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
        """``q`` [R, W, H, d] over the first ``lengths`` [R] places of its slot, then the first of
        the ``tail``: keys, values [H, T, d] and how many [R] -> [R, W, H * d]"""
        ...

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        """Adds ``delta`` to ``x`` [..., D] in place -> the layer norm of the sum"""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """The exact GELU; ``x`` is lost."""
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
        """A token for every row of ``logits`` [N, V], int32, and its log-probability. ``barred`` [2, V] is
        added: its second row where ``first`` [N] is 1. Temperature 0 takes the likeliest; where
        ``expected`` [N] is not negative, that token is taken whatever is likely."""
        ...


class PlainKernels:
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
        seen = torch.arange(end, device=q.device) <= positions[:, :, None]  # [R, W, end]
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
        seen = torch.arange(end, device=q.device) < lengths[:, None]  # [R, end]
        if tail is not None:
            tail_k, tail_v, tails = tail
            rows = len(slots)
            own_k = torch.cat([own_k, tail_k.expand(rows, -1, -1, -1)], dim=2)
            own_v = torch.cat([own_v, tail_v.expand(rows, -1, -1, -1)], dim=2)
            more = torch.arange(tail_k.shape[1], device=q.device) < tails[:, None]
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
    """Needs a GPU and Triton. Raises ImportError where that is missing."""

    def __init__(self) -> None:
        from . import triton_attention as triton_slots
        from . import triton_layers

        self._layers = triton_layers
        self.store = triton_slots.store
        self.attend_text = triton_slots.attend_text
        self.attend_audio = triton_slots.attend_audio
        self.gelu = triton_layers.gelu_
        self.choose = triton_layers.choose

    def add_norm(self, x: Tensor, delta: Tensor | None, norm: nn.LayerNorm) -> Tensor:
        return self._layers.add_norm(x, delta, norm.weight, norm.bias, norm.eps)


def make_kernels(device: torch.device) -> SlotKernels:
    """Triton's on a GPU where they run, else the plain ones."""
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
    """``q`` [R, W, H, d], ``k`` and ``v`` [R, H, S, d] -> [R, W, H * d]"""
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=seen)
    return out.transpose(1, 2).flatten(2)
