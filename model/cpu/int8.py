"""int8 matrices of the compiled decoder, and the layers that use one outside its kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from .kernels import linear_part
from .parallel import parallel_for

__all__ = ["Floats", "Int8Embedding", "Int8Matrix", "KernelLinear"]

Floats = NDArray[np.float32]

_WORTH_SHARING = 4_000_000  # products, some 0.2 ms: less than that is done sooner alone
_CHUNK = 4096  # rows turned to int8 at a time: the table of embeddings is large in fp32
_COLUMNS = 16  # outputs in a cache line of the result


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Int8Matrix:
    """``weight`` [N, K] int8 in units of ``scale`` [N], with ``bias`` [N]."""

    weight: NDArray[np.int8]
    scale: Floats
    bias: Floats

    @classmethod
    def of(cls, module: nn.Module) -> Int8Matrix:
        assert isinstance(module, nn.Linear)
        stored = module.weight.detach()
        weight = torch.empty(stored.shape, dtype=torch.int8)
        scale = torch.empty(len(stored))
        for at in range(0, len(stored), _CHUNK):
            rows = slice(at, at + _CHUNK)
            part = stored[rows].float()
            scale[rows] = part.abs().amax(dim=1).clamp_(min=1e-12).div_(127)
            # not in place: ``part`` is the module's own where that is fp32
            weight[rows] = (part / scale[rows, None]).round_().to(torch.int8)
        bias = torch.zeros_like(scale) if module.bias is None else module.bias.detach().float()
        return cls(weight=weight.numpy(), scale=scale.numpy(), bias=bias.clone().numpy())

    @property
    def arrays(self) -> tuple[NDArray[np.int8], Floats, Floats]:
        return self.weight, self.scale, self.bias


class KernelLinear(nn.Module):
    """A linear layer [..., K] -> [..., N] by the kernel, for any number of rows."""

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous().numpy()  # [R, K]
        matrix = self.matrix
        out = np.empty((len(rows), len(matrix.scale)), np.float32)

        def part(begin: int, end: int) -> None:
            linear_part(rows, matrix.arrays, out, begin, end)

        if len(rows) * matrix.weight.size < _WORTH_SHARING:
            part(0, len(matrix.scale))
        else:
            parallel_for(part, len(matrix.scale), align=_COLUMNS)
        return torch.from_numpy(out).view(*x.shape[:-1], -1)


class Int8Embedding(nn.Module):
    """Looks tokens up in the matrix that also projects hidden states onto them."""

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self._matrix = matrix

    def forward(self, tokens: Tensor) -> Tensor:
        ids = tokens.numpy()
        rows = self._matrix.weight[ids] * self._matrix.scale[ids][..., None]
        return torch.from_numpy(rows)
