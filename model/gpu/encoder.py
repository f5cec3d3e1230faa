"""The encoder over many windows of different lengths at once, packed one behind the other.

Nothing is padded but for the convolutions: the matrix products see all positions as one long sequence,
and attention knows where each window begins. Letters: B windows, F positions of the
longest, P positions of all of them, D state, H heads, d = D / H; B' and F' are those of a batch that is padded for
the convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..media.audio import N_SAMPLES, N_SAMPLES_PER_TOKEN, SAMPLE_RATE
from ..whisper.layers import EncoderBlock
from ..whisper.mel import log_mel_spectrogram
from ..whisper.network import Whisper
from .columns import send
from .kernels import SlotKernels, make_kernels

__all__ = ["EncoderRun", "PackedEncoder"]

# queries, keys, values [P, H, d] -> [P, D]: every position sees those of its own window
_Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

# cuDNN makes a plan for every shape it meets, which is worth its time for many windows of one length
_PLANNED = 8
_ROWS, _SAMPLES = (
    8,
    2 * SAMPLE_RATE,
)  # the steps of a batch's shape, for spectrograms and convolutions
# the fastest first; each takes over where the one before cannot
_DENSE = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


class EncoderRun:
    """Windows that are being encoded, layer by layer, between other work.

    Attributes:
        positions: of all windows.
        done: ``finish`` has nothing left to compute.
    """

    def __init__(self, layers: Iterator[Tensor], positions: int) -> None:
        self.positions = positions
        self.done = False
        self._layers = layers
        self._features = next(layers)

    def advance(self, layers: int) -> None:
        """Compute ``layers`` layers more, or those that are left."""
        for _ in range(layers):
            features = next(self._layers, None)
            if features is None:
                self.done = True
                return
            self._features = features

    def finish(self) -> Tensor:
        """Compute the layers that are left; return features [P, D]."""
        while not self.done:
            self.advance(1)
        return self._features


class PackedEncoder:
    """Encodes windows of different lengths together.

    Args:
        kernels: run between the matrix products; None takes the best there are.
    """

    def __init__(self, model: Whisper, kernels: SlotKernels | None = None) -> None:
        self._encoder = model.encoder
        self._mels = model.dims.n_mels
        self._device = model.device
        self._dtype = model.dtype
        self._kernels = kernels or make_kernels(model.device)
        # whether attention knows packed rows
        self._packs = _has_flash(model.device) and model.dtype != torch.float32
        self._blocks: list[EncoderBlock] = list(model.encoder.blocks)  # type: ignore[arg-type]

    def __call__(self, windows: Sequence[NDArray[np.float32]], lengths: Sequence[int]) -> Tensor:
        """Encode windows; return features [P, D], in their order.

        Args:
            windows: 16 kHz samples of each.
            lengths: samples of each with the silence that follows, multiples of 320.
        """
        return self.start(windows, lengths).finish()

    def start(self, windows: Sequence[NDArray[np.float32]], lengths: Sequence[int]) -> EncoderRun:
        """Begin to encode, as a call would, but in steps."""
        cuda = self._device.type == "cuda"
        shape = len(windows), max(lengths)
        padded = torch.empty(_round(*shape) if cuda else shape, pin_memory=cuda)  # [B', samples]
        samples = padded.numpy()
        for row, window in enumerate(windows):
            samples[row, : len(window)] = window
            samples[row, len(window) :] = 0.0
        samples[len(windows) :] = 0.0
        mel = log_mel_spectrogram(
            padded.to(self._device, non_blocking=True), self._mels
        )  # [B', n_mels, frames]
        return self._run(mel.to(self._dtype), [one // N_SAMPLES_PER_TOKEN for one in lengths])

    def encode(self, mel: Tensor, positions: Sequence[int]) -> Tensor:
        """Encode the first ``2 * positions`` frames of rows of ``mel`` [B', n_mels, frames]; return [P, D]."""
        return self._run(mel, positions).finish()

    def _run(self, mel: Tensor, positions: Sequence[int]) -> EncoderRun:
        return EncoderRun(self._layers(mel, positions), sum(positions))

    def _layers(self, mel: Tensor, positions: Sequence[int]) -> Iterator[Tensor]:
        """Yield the output of the convolutions, and then of each layer; the last one is the result."""
        x = self._convolve(mel, positions)  # [B', F', D]
        longest = x.shape[1]
        padded = sum(positions) < x.shape[0] * longest
        x = x.reshape(-1, x.shape[-1])
        if padded:
            x = x[self._packing(positions, longest)]
        same = len(set(positions)) == 1
        dense = same and (not self._packs or len(positions) >= _PLANNED)
        attend = self._dense(len(positions), positions[0]) if dense else self._varied(positions)
        kernels = self._kernels
        normed = kernels.add_norm(x, None, self._blocks[0].attn_ln)
        yield normed
        for layer, block in enumerate(self._blocks):
            parts = block.attn_qkv(normed).view(x.shape[0], 3, block.heads, -1)
            seen = attend(*parts.unbind(1))  # [P, D]
            normed = kernels.add_norm(x, block.attn_out(seen), block.mlp_ln)
            grown = kernels.gelu(block.mlp_in(normed))
            last = layer + 1 == len(self._blocks)
            after = self._encoder.ln_post if last else self._blocks[layer + 1].attn_ln
            normed = kernels.add_norm(x, block.mlp_out(grown), after)
            yield normed

    def _convolve(self, mel: Tensor, positions: Sequence[int]) -> Tensor:
        """Convolve as if every row were alone: beyond its end a convolution sees zeros."""
        encoder = self._encoder
        if 2 * sum(positions) < mel.shape[0] * mel.shape[-1]:
            ends = np.zeros(mel.shape[0], np.int32)
            ends[: len(positions)] = positions
            frames = 2 * send(ends, mel.device)
            inside = torch.arange(mel.shape[-1], device=mel.device) < frames[:, None]
            mask = inside[:, None]  # [B', 1, frames]
            x = F.gelu(encoder.conv1(mel * mask)) * mask
        else:
            x = F.gelu(encoder.conv1(mel))
        x = F.gelu(encoder.conv2(x)).transpose(1, 2)  # [B, F, D]
        return (x + encoder.positional_embedding[: x.shape[1]]).to(self._dtype).contiguous()

    def _packing(self, positions: Sequence[int], longest: int) -> Tensor:
        """Return the indices of the positions that count among all [B' * F']."""
        rows = [row * longest + np.arange(count) for row, count in enumerate(positions)]
        return send(np.concatenate(rows).astype(np.int32), self._device)

    def _dense(self, rows: int, length: int) -> _Attend:
        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (one.view(rows, length, *one.shape[1:]).transpose(1, 2) for one in (q, k, v))
            if q.is_cuda:
                with sdpa_kernel(_DENSE, set_priority=True):
                    out = F.scaled_dot_product_attention(q, k, v)
            else:
                out = F.scaled_dot_product_attention(q, k, v)
            return out.transpose(1, 2).reshape(rows * length, -1)

        return attend

    def _varied(self, positions: Sequence[int]) -> _Attend:
        if self._packs:
            return _flash(positions, self._device)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            bounds = [0, *accumulate(positions)]
            out = []
            for begin, end in pairwise(bounds):
                # [F, H, d] -> [1, H, F, d]
                row = [one[begin:end].transpose(0, 1)[None] for one in (q, k, v)]
                one = F.scaled_dot_product_attention(row[0], row[1], row[2])[0]
                out.append(one.transpose(0, 1).flatten(1))
            return torch.cat(out)

        return attend


def _has_flash(device: torch.device) -> bool:
    """Flash attention needs an NVIDIA GPU of compute capability 8.0."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)


def _round(rows: int, samples: int) -> tuple[int, int]:
    """Round up: cuFFT and cuDNN make a plan for every shape that they have not met."""
    return rows + -rows % _ROWS, min(N_SAMPLES, samples + -samples % _SAMPLES)


def _flash(positions: Sequence[int], device: torch.device) -> _Attend:
    bounds = send(np.cumsum([0, *positions]).astype(np.int32), device)
    longest = max(positions)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, 0.0, False, False
        )[0]
        return out.flatten(1)

    return attend
