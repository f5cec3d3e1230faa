"""The decoder's layers over rows in slots. Letters: R rows, W tokens of each, N = R * W, D state, V vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from .layers import DecoderBlock
from .slot_caches import SlotCaches
from .slot_kernels import SlotKernels
from .whisper import TextDecoder, Whisper

__all__ = ["SlotNetwork"]


class SlotNetwork:
    """Nothing here waits for the device, or takes memory of a size that the numbers decide: it can be captured."""

    def __init__(self, model: Whisper, caches: SlotCaches, kernels: SlotKernels) -> None:
        decoder = model.decoder
        assert isinstance(decoder, TextDecoder), "the compute type must leave the decoder plain"
        self._decoder = decoder
        self._caches = caches
        self._kernels = kernels
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        self._context = model.dims.n_text_ctx
        self._heads = model.dims.n_text_head

    def __call__(self, tokens: Tensor, positions: Tensor, texts: Tensor, windows: Tensor) -> Tensor:
        """``tokens`` and ``positions`` [R, W], their text slots and those of their audio [R], all int32.

        Returns hidden states [R, W, D]; the caches are written, and the queries of the alignment heads.
        """
        kernels, decoder, caches = self._kernels, self._decoder, self._caches
        rows, width = tokens.shape
        places = positions.clamp(max=self._context - 1)
        x = decoder.token_embedding(tokens) + decoder.positional_embedding[places]
        own = texts.repeat_interleave(width)  # [N]
        flat = positions.reshape(-1)
        lengths, tails = caches.lengths[windows], caches.tails[windows]
        at = 0  # of the alignment heads
        normed = kernels.add_norm(x, None, self._blocks[0].attn_ln)
        for layer, block in enumerate(self._blocks):
            parts = block.attn_qkv(normed).view(rows * width, 3, self._heads, -1)
            q, k, v = parts.unbind(1)
            kernels.store(k, v, caches.text_k[layer], caches.text_v[layer], own, flat)
            q = q.view(rows, width, self._heads, -1)
            seen = kernels.attend_text(
                q, caches.text_k[layer], caches.text_v[layer], texts, positions
            )
            normed = kernels.add_norm(x, block.attn_out(seen), block.cross_ln)
            q = block.cross_query(normed).view(rows, width, self._heads, -1)
            if layer in caches.chosen:
                heads = caches.chosen[layer]
                kept = q.flatten(0, 1)[:, heads]
                caches.queries[own.long(), flat.long(), at : at + len(heads)] = kept
                at += len(heads)
            tail = (*caches.silence[layer], tails) if caches.silence else None
            heard = kernels.attend_audio(
                q, caches.audio_k[layer], caches.audio_v[layer], windows, lengths, tail
            )
            normed = kernels.add_norm(x, block.cross_out(heard), block.mlp_ln)
            grown = kernels.gelu(block.mlp_in(normed))
            after = self._blocks[layer + 1].attn_ln if layer + 1 < len(self._blocks) else decoder.ln
            normed = kernels.add_norm(x, block.mlp_out(grown), after)
        return normed

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, D] -> logits [N, V], in the weights' own precision"""
        out: Tensor = self._decoder.projection(hidden)
        return out

    def ranked(self, hidden: Tensor, barred: Tensor, count: int) -> Tensor:
        """The ``count`` likeliest tokens after hidden states [N, D]: [2, N, count] int32, the second half
        being the bits of their log-probabilities in float32. ``barred`` [N, V] or [V] is added."""
        logits = self.logits(hidden).float() + barred
        best = logits.topk(count, dim=-1)
        logprobs = best.values - logits.logsumexp(dim=-1, keepdim=True)
        return torch.stack([best.indices.int(), logprobs.view(torch.int32)])
