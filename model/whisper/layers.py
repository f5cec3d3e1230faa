"""The transformer's parts.

Letters in shape comments: B rows, T tokens or frames, S keys, D state, H heads, d = D / H.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Conv1d",
    "DecoderBlock",
    "Embedding",
    "EncoderBlock",
    "Linear",
    "merge_heads",
    "sinusoids",
    "split_heads",
]


class Linear(nn.Linear):
    def reset_parameters(self) -> None:
        """Nothing: weights always come from a checkpoint, and drawing random ones takes time."""


class Conv1d(nn.Conv1d):
    def reset_parameters(self) -> None:
        """Nothing: as for ``Linear``."""


class Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        """Nothing: as for ``Linear``."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, T, D] -> [B, H, T, d]"""
    batch, length, state = x.shape
    return x.view(batch, length, heads, state // heads).transpose(
        1, 2
    )  # [B, T, H, d] -> [B, H, T, d]


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, d] -> [B, T, D]"""
    batch, heads, length, size = x.shape
    return x.transpose(1, 2).reshape(batch, length, heads * size)  # [B, T, H, d] -> [B, T, D]


def sinusoids(length: int, channels: int, max_timescale: float = 10_000.0) -> Tensor:
    """The encoder's position table [length, channels]: sines in the first half, cosines in the second.

    Source: "Attention is all you need", section 3.5, in Whisper's half-and-half layout.
    """
    steps = torch.log(torch.tensor(max_timescale)) / (channels // 2 - 1)
    rates = torch.exp(-steps * torch.arange(channels // 2))  # [channels / 2]
    angles = torch.arange(length)[:, None] * rates[None, :]  # [length, channels / 2]
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class _Block(nn.Module):
    """Self-attention with one fused projection, and the feed-forward half, shared by both stacks."""

    def __init__(self, state: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn_ln = nn.LayerNorm(state)
        self.attn_qkv = Linear(state, 3 * state)  # the key's third of the bias is zero
        self.attn_out = Linear(state, state)
        self.mlp_ln = nn.LayerNorm(state)
        self.mlp_in = Linear(state, 4 * state)
        self.mlp_out = Linear(4 * state, state)

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, D] -> queries, keys, values, each [B, H, T, d]"""
        q, k, v = self.attn_qkv(self.attn_ln(x)).chunk(3, dim=-1)  # each [B, T, D]
        return split_heads(q, self.heads), split_heads(k, self.heads), split_heads(v, self.heads)

    def feed_forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.mlp_ln(x))))
        return x + hidden


class EncoderBlock(_Block):
    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output [B, F, D] for ``x`` [B, F, D]."""
        q, k, v = self.qkv(x)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.attn_out(merge_heads(attended))
        return self.feed_forward(x)


class DecoderBlock(_Block):
    def __init__(self, state: int, heads: int) -> None:
        super().__init__(state, heads)
        self.cross_ln = nn.LayerNorm(state)
        self.cross_query = Linear(state, state)
        self.cross_kv = Linear(state, 2 * state)  # the key's half of the bias is zero
        self.cross_out = Linear(state, state)

    def audio_keys(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """``features`` [B, S, D] -> cross-attention keys and values, each [B, H, S, d]"""
        k, v = self.cross_kv(features).chunk(2, dim=-1)  # each [B, S, D]
        # contiguous: they are read at every step
        return split_heads(k, self.heads).contiguous(), split_heads(v, self.heads).contiguous()

    def self_attention(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None
    ) -> Tensor:
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.attn_out(merge_heads(attended))
        return x + out

    def cross_attention(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new ``x`` and the queries [B, H, T, d], from which alignment reads attention.

        ``k`` and ``v`` may have fewer rows than ``x``: each then serves the same number of neighbours.
        """
        q = split_heads(self.cross_query(self.cross_ln(x)), self.heads)
        k, v = k.to(q.dtype), v.to(q.dtype)
        if k.shape[0] == q.shape[0]:
            attended = F.scaled_dot_product_attention(q, k, v)
        else:
            attended = _attend_shared(q, k, v)
        return x + self.cross_out(merge_heads(attended)), q


def _attend_shared(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of several candidates to the audio they share, which is read once for all of them.

    ``q``: [A * G, H, T, d], G rows for each row of ``k`` and ``v`` [A, H, S, d].
    """
    rows, heads, length, size = q.shape
    windows = k.shape[0]
    # [A * G, H, T, d] -> [A, G, H, T, d] -> [A, H, G * T, d]
    together = q.reshape(windows, -1, heads, length, size).transpose(1, 2)
    together = together.reshape(windows, heads, -1, size)
    attended = F.scaled_dot_product_attention(together, k, v)
    # [A, H, G * T, d] -> [A, H, G, T, d] -> [A * G, H, T, d]
    apart = attended.reshape(windows, heads, -1, length, size).transpose(1, 2)
    return apart.reshape(rows, heads, length, size)
