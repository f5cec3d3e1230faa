"""Linear layers whose weights lie in memory in fewer bits, for CPUs. Inputs [..., in] stay fp32.

The packed forms are FBGEMM's, which PyTorch brings along on x86.
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Bfloat16Linear", "Int8Linear", "PackedLinear"]


class PackedLinear(nn.Module):
    """fp16 weights, multiplied in fp32: exact where the weights were published as fp16."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self._packed = torch.ops.quantized.linear_prepack_fp16(
            linear.weight.detach().float(), _bias(linear)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return out


class Bfloat16Linear(nn.Module):
    """bf16 in, weights and out, accumulated in fp32 by the CPU's matrix units."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # plain attributes: a later ``float()`` of the whole network leaves them alone
        self._weight = linear.weight.detach().bfloat16()
        self._bias = None if linear.bias is None else linear.bias.detach().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.bfloat16(), self._weight, self._bias)


class Int8Linear(nn.Module):
    """int8 weights scaled per output; inputs scaled per row, so that a row never depends on others.

    Too coarse for the decoder, whose activations have outliers (see ``kernels`` instead).
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # without VNNI, FBGEMM adds pairs of products in 16 bits, which full 8-bit inputs overflow
        self._levels = 127 if torch.cpu._is_vnni_supported() else 63
        self._bias = _bias(linear)
        self._packed = torch.ops.quantized.linear_prepack(_int8(linear.weight.detach()), None)

    def forward(self, x: Tensor) -> Tensor:
        largest = x.abs().amax(dim=-1, keepdim=True).clamp_(min=1e-12)
        # rounded in the product
        scaled = x * (self._levels / largest)  # within -levels..levels
        out: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
            scaled, 1.0, self._levels + 1, self._packed
        )
        out.mul_(largest.div_(self._levels))
        return out if self._bias is None else out.add_(self._bias)


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.detach().float()


def _int8(weight: Tensor) -> Tensor:
    """[out, in] -> the same as a quantised tensor, each row scaled by its largest entry."""
    weight = weight.float()
    scales = weight.abs().amax(dim=1).clamp_(min=1e-12).double() / 127  # [out]
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    with warnings.catch_warnings():
        # PyTorch announces the end of quantised tensors; constraints.txt pins a version that has them
        warnings.simplefilter("ignore", UserWarning)
        return torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
