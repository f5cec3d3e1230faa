"""The text decoder of compute types int8 and bfloat16 on CPU: int8 weights and compiled kernels.

It stands in for ``TextDecoder`` and does what that does. PyTorch takes most of a small model's step to
start some two hundred operations; for few rows, a step here is one call a layer. Many rows at once (a
prompt, a draft) go through ``TextDecoder`` with the same weights and the kernels' products. Either way
a row's result does not depend on the rows beside it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import ModelError
from ..whisper.cache import CrossCache, SelfCache
from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder
from .int8 import Floats, Int8Embedding, Int8Matrix, KernelLinear
from .kernels import HEAD_SIZE, decode_layer, normalise
from .parallel import single_threaded_torch

__all__ = ["CompiledDecoder"]

_FEW = 8  # rows up to which a fused layer is faster than its parts


class CompiledDecoder(nn.Module):
    """A ``TextDecoder`` with int8 weights and compiled layers.

    It takes over the matrices of ``decoder``, whose audio projections (``cross_kv``) it leaves as they are.
    """

    def __init__(self, decoder: TextDecoder) -> None:
        super().__init__()
        self.dims = decoder.dims
        self._heads = self.dims.n_text_head
        if self.dims.n_text_state != self._heads * HEAD_SIZE:
            raise ModelError(
                f"int8 and bfloat16 decoders need heads of {HEAD_SIZE} numbers, which this model has not: "
                "choose compute_type float32"
            )
        matrix = Int8Matrix.of(decoder.projection)  # the table of embeddings too
        decoder.set_submodule("projection", KernelLinear(matrix))
        decoder.set_submodule("token_embedding", Int8Embedding(matrix))
        self._no_slots = np.full(self._heads, -1)  # by head: where its scores go, -1 for nowhere
        self._layers = [_take_over(block) for block in decoder.blocks]
        self._norm = _norm(decoder.ln)
        self.wide = decoder

    def audio_cache(self, features: Tensor) -> CrossCache:
        """As ``TextDecoder.audio_cache``; keys and values are bf16, to be read faster."""
        cache: CrossCache = self.wide.audio_cache(features)
        return CrossCache([k.bfloat16() for k in cache.k], [v.bfloat16() for v in cache.v])

    def new_cache(self, rows: int) -> SelfCache:
        return self.wide.new_cache(rows)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.wide.logits(hidden)

    def stepping(self) -> AbstractContextManager[None]:
        return single_threaded_torch()

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: SelfCache,
        audio: CrossCache,
        *,
        start: int,
        heads: dict[int, list[int]] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """As ``TextDecoder.forward``."""
        batch, length = tokens.shape
        if batch * length > _FEW or cache.rows != batch:
            out: tuple[Tensor, Tensor | None] = self.wide(
                tokens, positions, cache, audio, start=start, heads=heads
            )
            return out
        embedded = self.wide.token_embedding(tokens) + self.wide.positional_embedding[positions]
        x = embedded.view(batch * length, -1).numpy()
        scores = self._run_layers(x, positions, cache, audio, heads or {})
        hidden = np.empty_like(x)
        normalise(x, self._norm, hidden)
        return torch.from_numpy(hidden).view(batch, length, -1), scores

    def _run_layers(
        self,
        x: Floats,
        positions: Tensor,
        cache: SelfCache,
        audio: CrossCache,
        heads: dict[int, list[int]],
    ) -> Tensor | None:
        """Run all layers on ``x`` [R, D] in place; return the scores of ``heads``, [B, heads, T, F]."""
        batch, length = positions.shape
        size = audio.k[0].shape[2]
        # contiguous always: for another layout numba compiles anew, perhaps with other roundings
        places = np.ascontiguousarray(positions.reshape(-1).numpy())
        keys, values = cache.k.numpy(), cache.v.numpy()  # [layer, B, H, C, d]
        nothing = np.empty((batch, 0, length, size), np.float32)
        scores: list[Floats] = []
        for index, layer in enumerate(self._layers):
            slots, seen = self._no_slots, nothing
            if index in heads:
                chosen = heads[index]
                slots = slots.copy()
                slots[chosen] = np.arange(len(chosen))
                seen = np.full((batch, len(chosen), length, size), -np.inf, np.float32)
                scores.append(seen)
            decode_layer(
                x,
                places,
                (keys[index], values[index]),
                audio.bits[index],
                slots,
                seen,
                layer.norms,
                layer.matrices,
            )
        return torch.from_numpy(np.concatenate(scores, axis=1)) if scores else None


def _norm(norm: nn.LayerNorm) -> tuple[Floats, Floats]:
    return norm.weight.float().numpy(), norm.bias.float().numpy()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _LayerWeights:
    """The weights of a layer as ``decode_layer`` takes them, in the order in which it uses them."""

    norms: tuple[tuple[Floats, Floats], ...]  # gain and bias, each [D]
    matrices: tuple[
        tuple[NDArray[np.int8], Floats, Floats], ...
    ]  # weight [N, K], scale [N], bias [N]


def _take_over(block: nn.Module) -> _LayerWeights:
    """Make the matrices of ``block`` int8, and return all its weights."""
    assert isinstance(block, DecoderBlock)
    matrices = []
    for name in ("attn_qkv", "attn_out", "cross_query", "cross_out", "mlp_in", "mlp_out"):
        matrix = Int8Matrix.of(getattr(block, name))
        setattr(block, name, KernelLinear(matrix))
        matrices.append(matrix.arrays)
    norms = (_norm(block.attn_ln), _norm(block.cross_ln), _norm(block.mlp_ln))
    return _LayerWeights(norms=norms, matrices=tuple(matrices))
