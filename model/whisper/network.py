"""The Whisper network: audio encoder and text decoder.

Source: "Robust Speech Recognition via Large-Scale Weak Supervision" (Radford et al., 2022), section 2.2.
Letters in shape comments: B rows, T tokens or frames, S audio positions, D state, H heads, d = D / H.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cache import CrossCache, SelfCache
from .dims import ModelDimensions
from .layers import Conv1d, DecoderBlock, Embedding, EncoderBlock, Linear, sinusoids

__all__ = ["AudioEncoder", "Decoder", "TextDecoder", "Whisper", "default_alignment_heads"]


class AudioEncoder(nn.Module):
    positional_embedding: Tensor

    def __init__(self, dims: ModelDimensions) -> None:
        super().__init__()
        state = dims.n_audio_state
        self.conv1 = Conv1d(dims.n_mels, state, kernel_size=3, padding=1)
        self.conv2 = Conv1d(state, state, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(dims.n_audio_ctx, state))
        self.blocks = nn.ModuleList(
            EncoderBlock(state, dims.n_audio_head) for _ in range(dims.n_audio_layer)
        )
        self.ln_post = nn.LayerNorm(state)

    def forward(self, mel: Tensor) -> Tensor:
        """``mel`` [B, n_mels, frames] (at most 3000, even) -> features [B, frames / 2, D]"""
        x = F.gelu(self.conv1(mel))
        x = F.gelu(self.conv2(x)).transpose(1, 2)  # [B, D, S] -> [B, S, D]
        if x.shape[1] > self.positional_embedding.shape[0]:
            raise ValueError(f"mel has {mel.shape[-1]} frames; at most 3000 fit the encoder")
        x = (x + self.positional_embedding[: x.shape[1]]).to(x.dtype)
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.ln_post(x)
        return out


class Decoder(Protocol):
    """The interface of a model's decoder: ``TextDecoder``, or the one that a compute type put in its place."""

    dims: ModelDimensions

    def audio_cache(self, features: Tensor) -> CrossCache: ...

    def new_cache(self, rows: int) -> SelfCache: ...

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        cache: SelfCache,
        audio: CrossCache,
        *,
        start: int,
        heads: dict[int, list[int]] | None = None,
    ) -> tuple[Tensor, Tensor | None]: ...

    def stepping(self) -> AbstractContextManager[None]: ...

    def logits(self, hidden: Tensor) -> Tensor: ...


class TextDecoder(nn.Module):
    def __init__(self, dims: ModelDimensions) -> None:
        super().__init__()
        state = dims.n_text_state
        self.dims = dims
        self.token_embedding = Embedding(dims.n_vocab, state)
        self.positional_embedding = nn.Parameter(torch.empty(dims.n_text_ctx, state))
        self.blocks = nn.ModuleList(
            DecoderBlock(state, dims.n_text_head) for _ in range(dims.n_text_layer)
        )
        self.ln = nn.LayerNorm(state)
        # Tied to the embedding; its own module so that a compute type may pack it.
        self.projection = Linear(state, dims.n_vocab, bias=False)
        self.projection.weight = self.token_embedding.weight

    def audio_cache(self, features: Tensor) -> CrossCache:
        """Return the cross-attention keys and values of ``features`` [B, F, D]."""
        pairs = [block.audio_keys(features) for block in self.blocks]  # type: ignore[operator]
        return CrossCache([k for k, _ in pairs], [v for _, v in pairs])

    def new_cache(self, rows: int) -> SelfCache:
        embedding = self.positional_embedding
        return SelfCache(self.dims, rows, device=embedding.device, dtype=embedding.dtype)

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
        """Run ``tokens`` [B, T] and enter them in the cache.

        Args:
            tokens: of B rows, which all stand at the same place.
            positions: [B, T], those of the tokens: ``start``, ``start + 1`` and so on.
            cache: keys and values of the tokens before ``start``.
            audio: keys and values of the windows.
            start: the first position.
            heads: the cross-attention heads of each layer whose scores are returned.

        Returns:
            Hidden states [B, T, D] (see ``logits``), and the scaled scores of ``heads`` before the
            softmax [B, heads, T, F]; None where no heads are given.
        """
        batch, length = tokens.shape
        x = self.token_embedding(tokens) + self.positional_embedding[positions]  # [B, T, D]
        end = start + length
        mask: Tensor | None = None
        if length > 1:
            keys = torch.arange(end, device=tokens.device)
            mask = (keys[None, None, :] <= positions[:, :, None])[:, None]  # [B, 1, T, end]
        scores: list[Tensor] = []
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, DecoderBlock)
            q, k, v = block.qkv(x)  # each [B, H, T, d]
            cache.update(layer, start, k, v)
            x = block.self_attention(
                x, q, cache.k[layer, :, :, :end], cache.v[layer, :, :, :end], mask
            )
            x, q = block.cross_attention(x, audio.k[layer], audio.v[layer])
            if heads is not None and layer in heads:
                chosen = heads[layer]
                scale = q.shape[-1] ** -0.5
                keys = audio.k[layer][:, chosen].to(q.dtype)
                keys = keys.repeat_interleave(batch // keys.shape[0], dim=0)  # shared by candidates
                # [B, h, T, d] @ [B, h, d, S] -> [B, h, T, S]
                scores.append(q[:, chosen] @ keys.transpose(2, 3) * scale)
            x = block.feed_forward(x)
        return self.ln(x), torch.cat(scores, dim=1) if scores else None

    def stepping(self) -> AbstractContextManager[None]:
        """A context in which steps of few tokens run best."""
        return nullcontext()

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [..., D] -> logits [..., V] in float32."""
        out: Tensor = self.projection(hidden)
        return out.float()


def default_alignment_heads(dims: ModelDimensions) -> tuple[tuple[int, int], ...]:
    """Every head of the upper half of the decoder: for models whose alignment heads are not known."""
    return tuple(
        (layer, head)
        for layer in range(dims.n_text_layer // 2, dims.n_text_layer)
        for head in range(dims.n_text_head)
    )


class Whisper(nn.Module):
    """A Whisper model with its weights. Made by ``load_model``."""

    def __init__(
        self,
        dims: ModelDimensions,
        *,
        name: str = "custom",
        alignment_heads: tuple[tuple[int, int], ...] | None = None,
    ) -> None:
        super().__init__()
        self.dims = dims
        self.name = name
        self.encoder = AudioEncoder(dims)
        self.decoder: Decoder = TextDecoder(dims)
        # (layer, head) pairs whose cross-attention follows the audio
        self.alignment_heads = alignment_heads or default_alignment_heads(dims)

    @property
    def device(self) -> torch.device:
        return self.encoder.positional_embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.encoder.positional_embedding.dtype

    @property
    def is_multilingual(self) -> bool:
        return self.dims.is_multilingual

    @property
    def num_languages(self) -> int:
        return self.dims.num_languages

    @property
    def heads_by_layer(self) -> dict[int, list[int]]:
        """The alignment heads as layer -> heads, in ascending order."""
        grouped: dict[int, list[int]] = {}
        for layer, head in sorted(self.alignment_heads):
            grouped.setdefault(layer, []).append(head)
        return grouped

    def embed_audio(self, mel: Tensor) -> Tensor:
        """``mel`` [B, n_mels, frames] -> features [B, frames / 2, D]"""
        features: Tensor = self.encoder(mel)
        return features

    def logits(self, tokens: Tensor, features: Tensor) -> Tensor:
        """``tokens`` [B, T] from the start of the sequence, ``features`` [B, S, D] -> logits [B, T, V]"""
        batch, length = tokens.shape
        positions = torch.arange(length, device=tokens.device).expand(batch, length)
        hidden, _ = self.decoder(
            tokens,
            positions,
            self.decoder.new_cache(batch),
            self.decoder.audio_cache(features),
            start=0,
        )
        return self.decoder.logits(hidden)

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        """``mel`` [B, n_mels, frames], ``tokens`` [B, T] -> logits [B, T, V]"""
        return self.logits(tokens, self.embed_audio(mel))
