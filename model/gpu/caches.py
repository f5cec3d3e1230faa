"""Keys and values of many sequences and windows at once, each in a slot of its own.

Rows come and go without moving each other: a slot that is given up is overwritten by its next user, and
what is stale in it is never seen, as every row says how far it reads. Letters: L layers, H heads, d channels
of a head, C places of a text, S of a window, h alignment heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..whisper.dims import ModelDimensions
from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder, Whisper
from .kernels import SlotKernels

__all__ = ["SPARE", "SlotCaches", "fetch", "send", "slot_bytes"]

SPARE = 64  # places of a text beyond the decoder's context: what a padded row writes lies there


class SlotCaches:
    """``windows`` of audio and ``texts`` may be in flight; one more of each takes what padding writes.

    ``silence``: per layer, keys and values [H, T, d] that follow windows that are not full.
    """

    def __init__(
        self,
        model: Whisper,
        kernels: SlotKernels,
        *,
        windows: int,
        texts: int,
        silence: Sequence[tuple[Tensor, Tensor]],
    ) -> None:
        decoder, dims, device = model.decoder, model.dims, model.device
        assert isinstance(decoder, TextDecoder)
        self.windows = windows
        self.texts = texts
        self._kernels = kernels
        self._blocks: list[DecoderBlock] = list(decoder.blocks)  # type: ignore[arg-type]
        self._heads, self._size = dims.n_text_head, dims.n_text_state // dims.n_text_head
        self.device = device
        dtype = decoder.positional_embedding.dtype

        def zeros(*shape: int, kind: torch.dtype = dtype) -> Tensor:
            return torch.zeros(shape, device=device, dtype=kind)

        layers, places = dims.n_text_layer, dims.n_text_ctx + SPARE
        text = (layers, texts + 1, self._heads, places, self._size)
        audio = (layers, windows + 1, self._heads, dims.n_audio_ctx, self._size)
        self.text_k, self.text_v = zeros(*text), zeros(*text)  # [L, slots, H, C, d]
        self.audio_k, self.audio_v = zeros(*audio), zeros(*audio)  # [L, slots, H, S, d]
        self.lengths = zeros(windows + 1, kind=torch.int32) + 1  # of the audio
        self.tails = zeros(windows + 1, kind=torch.int32)  # of silence after it
        self.silence = [(k.contiguous(), v.contiguous()) for k, v in silence]
        self.tail = self.silence[0][0].shape[1] if self.silence else 0
        # the alignment heads' queries of every token, from which word times are read
        self.chosen = {
            layer: torch.tensor(heads, device=device)
            for layer, heads in model.heads_by_layer.items()
        }
        aligned = sum(len(heads) for heads in self.chosen.values())
        self.queries = zeros(texts + 1, places, aligned, self._size)  # [slots, C, h, d]

    def enter(self, features: Tensor, windows: Sequence[tuple[int, int, bool]]) -> None:
        """Enters encoder output ``features`` [P, D] of windows that lie one behind the other.

        ``windows``: slot, number of positions, and whether silence follows.
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
        self.tails[rows] = table[:, 2] * self.tail

    def copy_text(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Text slot ``targets[i]`` becomes what ``sources[i]`` is, as far as ``length`` tokens."""
        table = send(np.array([sources, targets], np.int32), self.device).long()
        for cache in (self.text_k, self.text_v):
            # the right side is a copy, so slots may trade places
            cache[:, table[1], :, :length] = cache[:, table[0], :, :length]

    def aligned_keys(self, slots: Tensor, positions: int) -> Tensor:
        """The alignment heads' keys of the first ``positions`` of windows ``slots`` [F] -> [F, h, S, d]"""
        return torch.cat(
            [
                self.audio_k[layer, :, :, :positions][slots[:, None], heads]
                for layer, heads in self.chosen.items()
            ],
            dim=1,
        )

    def silent_keys(self) -> Tensor:
        """Those of the silence after the audio: [h, T, d]"""
        return torch.cat([self.silence[layer][0][heads] for layer, heads in self.chosen.items()])


def slot_bytes(dims: ModelDimensions, element_size: int) -> int:
    """What a window and its text take: keys and values of all layers."""
    places = dims.n_audio_ctx + dims.n_text_ctx + SPARE
    return 2 * dims.n_text_layer * dims.n_text_state * places * element_size


def send(numbers: NDArray[np.int32], device: torch.device) -> Tensor:
    """``numbers`` on ``device``, without waiting for what runs there."""
    table = torch.from_numpy(np.ascontiguousarray(numbers))
    if device.type != "cuda":
        return table
    return table.pin_memory().to(device, non_blocking=True)


def fetch(numbers: Tensor, meanwhile: Callable[[], None]) -> NDArray[Any]:
    """``numbers`` on the host. ``meanwhile`` is called before they are waited for: what it asks of the device
    is done while the host works on them."""
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
