"""Compute types: in what precision the weights lie in memory and are multiplied.

On CPU, ``float16`` keeps weights as fp16 and multiplies in fp32: exact for checkpoints published as
fp16, at half the memory traffic (FBGEMM packed linears; x86 only).
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from .errors import ModelError

__all__ = ["COMPUTE_TYPES", "ComputeType", "pack_linears", "resolve_compute_type"]

ComputeType = Literal["auto", "float32", "float16", "bfloat16"]
COMPUTE_TYPES: tuple[str, ...] = get_args(ComputeType)


def _can_pack() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def resolve_compute_type(requested: str, device: torch.device) -> str:
    """The compute type that will be used for ``requested`` on ``device``.

    Raises ModelError when the name is unknown or the device cannot do it.
    """
    if requested not in COMPUTE_TYPES:
        raise ModelError(
            f"unknown compute_type {requested!r}: choose one of {', '.join(COMPUTE_TYPES)}"
        )
    if device.type != "cpu":
        return "float16" if requested == "auto" else requested
    if requested == "auto":
        return "float16" if _can_pack() else "float32"
    if requested == "bfloat16":
        raise ModelError("compute_type bfloat16 is slow on CPU: choose float16 or float32")
    if requested == "float16" and not _can_pack():
        raise ModelError("compute_type float16 needs an x86 CPU here: choose float32")
    return requested


class PackedLinear(nn.Module):
    """A linear layer whose fp16 weights are packed for FBGEMM; inputs [B, ..., in] stay fp32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack_fp16(linear.weight.detach().float(), bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self.packed)
        return out


def pack_linears(module: nn.Module) -> None:
    """Replaces every linear layer below ``module`` by its packed form, in place."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, PackedLinear(child))
        else:
            pack_linears(child)
