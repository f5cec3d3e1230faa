"""Compute types: in what precision the weights lie in memory and are multiplied.

On CPU the residual stream is always fp32; a compute type says how the matrices in between work:

========== ======== ================ =============
type       encoder  cross K and V    decoder
========== ======== ================ =============
float32    fp32     fp32             fp32
float16    fp32     fp16 weights     fp16 weights
int8       int8     fp16 weights     int8 weights
bfloat16   bf16     bf16             int8 weights
========== ======== ================ =============

"fp16 weights" are held as fp16 and multiplied in fp32: exact for published checkpoints, which are
fp16. ``float32`` too holds a decoder matrix so where that loses nothing. "int8 weights" are those of
the compiled decoder (see ``kernels``). ``auto`` is ``bfloat16`` where the CPU has matrix units for it,
else ``int8`` where it can (x86), else ``float32``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from torch import nn

from ..errors import ModelError
from ..whisper.layers import DecoderBlock
from ..whisper.network import TextDecoder, Whisper
from .linears import Bfloat16Linear, Int8Linear, PackedLinear

__all__ = ["COMPUTE_TYPES", "ComputeType", "prepare_for_cpu", "resolve_compute_type"]

ComputeType = Literal["auto", "float32", "float16", "bfloat16", "int8"]
COMPUTE_TYPES: tuple[str, ...] = get_args(ComputeType)


def _can_pack() -> bool:
    return "fbgemm" in torch.backends.quantized.supported_engines


def _has_matrix_units() -> bool:
    """Whether the CPU multiplies bf16 matrices much faster than fp32 ones (AMX)."""
    return torch.cpu._is_amx_tile_supported()


def resolve_compute_type(requested: str, device: torch.device) -> str:
    """The compute type that will be used for ``requested`` on ``device``.

    Raises ModelError when the name is unknown or the device cannot do it.
    """
    if requested not in COMPUTE_TYPES:
        raise ModelError(
            f"unknown compute_type {requested!r}: choose one of {', '.join(COMPUTE_TYPES)}"
        )
    if device.type != "cpu":
        if requested == "int8":
            raise ModelError("compute_type int8 is for CPUs: choose float16 or bfloat16")
        return "float16" if requested == "auto" else requested
    if requested == "auto":
        if not _can_pack():
            return "float32"
        return "bfloat16" if _has_matrix_units() else "int8"
    if requested == "bfloat16" and not (_has_matrix_units() and _can_pack()):
        raise ModelError("compute_type bfloat16 is slow on this CPU: choose int8 or float32")
    if requested in ("float16", "int8") and not _can_pack():
        raise ModelError(f"compute_type {requested} needs an x86 CPU: choose float32")
    return requested


@torch.inference_mode()
def prepare_for_cpu(model: Whisper, compute_type: str) -> None:
    """Gives every layer of ``model``, whose tensors may be of any type, its form for ``compute_type``.

    Layer by layer, and each releases what it replaces: the weights are never there twice.
    """
    decoder = model.decoder
    assert isinstance(decoder, TextDecoder)
    if compute_type in ("int8", "bfloat16"):
        from .decoder import CompiledDecoder  # numba is slow to import

        audio = Bfloat16Linear if compute_type == "bfloat16" else PackedLinear
        for block in decoder.blocks:
            assert isinstance(block, DecoderBlock)
            block.set_submodule("cross_kv", audio(block.cross_kv))
        model.decoder = CompiledDecoder(decoder)
        _replace(model.encoder, Bfloat16Linear if compute_type == "bfloat16" else Int8Linear)
    elif _can_pack():
        _replace(decoder, PackedLinear, only_exact=compute_type == "float32")
    model.float()


def _replace(
    module: nn.Module, form: Callable[[nn.Linear], nn.Module], *, only_exact: bool = False
) -> None:
    """Replaces the linear layers below ``module``; ``only_exact``: those whose weights are fp16 numbers."""
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear):
            _replace(child, form, only_exact=only_exact)
        elif not only_exact or torch.equal(child.weight.half().float(), child.weight.float()):
            setattr(module, name, form(child))
