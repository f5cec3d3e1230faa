"""Keys and values of many texts and windows at once, each in a slot of its own.

Rows come and go without moving each other: a slot that is given up is overwritten by its next user, and
what is stale in it is never seen, as every row says how far it reads. Letters: L layers, H heads, d channels
of a head, C places of a text, F positions of a window, h alignment heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..whisper.dims import ModelDimensions
from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder, Whisper
from .columns import send
from .kernels import SlotKernels

__all__ = ["SPARE", "SlotCaches", "slot_bytes"]

SPARE = 64  # places of a text beyond the decoder's context: what a padded row writes lies there


class SlotCaches:
    """The key-value caches of all rows in flight, for text and audio. One slot more of each takes what padding writes.

    Args:
        audio_slots: windows in flight at once.
        text_slots: texts in flight at once.
        silence: per layer, keys and values [H, F, d] that follow windows that are not full.

    Attributes:
        lengths: [slots] int32, positions of each window.
        silence_lengths: [slots] int32, positions of silence that follow them.
        silence_positions: of the silence there is.
        queries: [slots, C, h, d], those of the alignment heads for every token; word times are read from them.
    """

    def __init__(
        self,
        model: Whisper,
        kernels: SlotKernels,
        *,
        audio_slots: int,
        text_slots: int,
        silence: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        decoder, dims, device = model.decoder, model.dims, model.device
        assert isinstance(decoder, TextDecoder)
        self.audio_slots = audio_slots
        self.text_slots = text_slots
        self._kernels = kernels
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        self._heads, self._size = dims.n_text_head, dims.n_text_state // dims.n_text_head
        self.device = device
        dtype = decoder.positional_embedding.dtype

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        layers, places = dims.n_text_layer, dims.n_text_ctx + SPARE
        text = (layers, text_slots + 1, self._heads, places, self._size)
        audio = (layers, audio_slots + 1, self._heads, dims.n_audio_ctx, self._size)
        self.text_k, self.text_v = zeros(*text), zeros(*text)  # [L, slots, H, C, d]
        self.audio_k, self.audio_v = zeros(*audio), zeros(*audio)  # [L, slots, H, F, d]
        self.lengths = zeros(audio_slots + 1, kind=torch.int32) + 1
        self.silence_lengths = zeros(audio_slots + 1, kind=torch.int32)
        self.silence = [(k.contiguous(), v.contiguous()) for k, v in silence]
        self.silence_positions = self.silence[0][0].shape[1] if self.silence else 0
        self.alignment_heads = {
            layer: torch.tensor(heads, device=device)
            for layer, heads in model.heads_by_layer.items()
        }
        aligned = sum(len(heads) for heads in self.alignment_heads.values())
        self.queries = zeros(text_slots + 1, places, aligned, self._size)

    def enter(self, features: Tensor, windows: Sequence[tuple[int, int, bool]]) -> None:
        """Enter encoder output ``features`` [F, D] of windows that lie one behind the other.

        Args:
            windows: slot and number of positions of each, and whether silence follows.
        """
        count = features.shape[0]
        slots = np.repeat([slot for slot, _, _ in windows], [size for _, size, _ in windows])
        positions = np.concatenate([np.arange(size) for _, size, _ in windows])
        where = send(np.stack([slots, positions]).astype(np.int32), self.device)
        for layer, block in enumerate(self._blocks):
            k, v = block.cross_kv(features).view(count, 2, self._heads, self._size).unbind(1)
            self._kernels.store(k, v, self.audio_k[layer], self.audio_v[layer], where[0], where[1])
        table = send(np.array(windows, np.int32), self.device)  # [windows, 3]
        rows = table[:, 0].long()
        self.lengths[rows] = table[:, 1]
        self.silence_lengths[rows] = table[:, 2] * self.silence_positions

    def copy_text(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of text slot ``sources[i]`` to slot ``targets[i]``, for all i at once."""
        table = send(np.array([sources, targets], np.int32), self.device).long()
        for cache in (self.text_k, self.text_v):
            # the right side is a copy, so slots may trade places
            cache[:, table[1], :, :length] = cache[:, table[0], :, :length]

    def aligned_keys(self, slots: Tensor, positions: int) -> Tensor:
        """Return the alignment heads' keys of the first ``positions`` of audio slots ``slots`` [B], as [B, h, F, d]."""
        return torch.cat(
            [
                self.audio_k[layer, :, :, :positions][slots[:, None], heads]
                for layer, heads in self.alignment_heads.items()
            ],
            dim=1,
        )

    def silent_keys(self) -> Tensor:
        """Return the alignment heads' keys of the silence after the audio, as [h, F, d]."""
        return torch.cat(
            [self.silence[layer][0][heads] for layer, heads in self.alignment_heads.items()]
        )


def slot_bytes(dims: ModelDimensions, element_size: int) -> int:
    """Return the bytes of a window and its text: keys and values of all layers."""
    places = dims.n_audio_ctx + dims.n_text_ctx + SPARE
    return 2 * dims.n_text_layer * dims.n_text_state * places * element_size
