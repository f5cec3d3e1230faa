"""The operations between the matrix products, in one pass over memory each, as Triton kernels for the GPU."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["add_norm", "choose", "gelu_"]


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, delta_ptr, weight_ptr, bias_ptr, out_ptr, D, epsilon,
    ADD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * D
    at = tl.arange(0, BLOCK)
    inside = at < D
    x = tl.load(x_ptr + row + at, mask=inside, other=0.0)
    if ADD:
        x = x + tl.load(delta_ptr + row + at, mask=inside, other=0.0)
        tl.store(x_ptr + row + at, x, mask=inside)
    wide = x.to(tl.float32)
    mean = tl.sum(wide, 0) / D
    centred = tl.where(inside, wide - mean, 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / D + epsilon)
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out = centred * scale * weight + bias
    tl.store(out_ptr + row + at, out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_kernel(x_ptr, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    tl.store(x_ptr + at, out.to(x_ptr.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _choose_kernel(  # type: ignore[no-untyped-def]
    logits_ptr,  # [N, V]
    barred_ptr,  # [2, V] float32, 0 or -inf: for any token, and for the first
    first_ptr,  # [N] int32, 1: the first token of a text
    temperature_ptr,  # [N] float32
    seed_ptr,  # [N] int32
    expected_ptr,  # [N] int32: taken if not negative
    token_ptr,  # [N] int32, out
    logprob_ptr,  # [N] float32, out
    V,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0)
    logits_ptr += n.to(tl.int64) * V
    barred_ptr += tl.load(first_ptr + n) * V
    temperature = tl.load(temperature_ptr + n)
    seed = tl.load(seed_ptr + n)
    lanes = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int32) + V  # above every token
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, V, BLOCK):
        at = start + lanes
        inside = at < V
        logit = tl.load(logits_ptr + at, mask=inside, other=0.0).to(tl.float32)
        logit += tl.load(barred_ptr + at, mask=inside, other=float("-inf"))
        key = logit
        if temperature > 0:
            # the largest of logit / temperature + Gumbel noise is a sample of the softmax
            chance = tl.maximum(tl.rand(seed, at), 1e-10)
            key = logit - temperature * tl.log(-tl.log(chance))
        better = key > best
        best = tl.where(better, key, best)
        where = tl.where(better, at, where)
        higher = tl.maximum(top, logit)
        base = tl.where(higher == float("-inf"), 0.0, higher)
        total = total * tl.exp(top - base) + tl.exp(logit - base)
        top = higher
    most = tl.max(best, 0)
    # the first of equals; the last token where nothing is comparable, as after an overflow
    token = tl.minimum(tl.min(tl.where(best == most, where, V), 0), V - 1)
    expected = tl.load(expected_ptr + n)
    token = tl.where(expected >= 0, expected, token)
    chosen = tl.load(logits_ptr + token).to(tl.float32) + tl.load(barred_ptr + token)
    peak = tl.max(top, 0)
    everything = tl.sum(total * tl.exp(top - peak), 0)
    tl.store(token_ptr + n, token)
    tl.store(logprob_ptr + n, chosen - peak - tl.log(everything))


def add_norm(
    x: Tensor, delta: Tensor | None, weight: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    """Adds ``delta`` to ``x`` [..., D], in place, and returns the layer norm of the sum."""
    out = torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    if rows:
        block = triton.next_power_of_2(width)
        _add_norm_kernel[(rows,)](
            x,
            x if delta is None else delta,
            weight,
            bias,
            out,
            width,
            epsilon,
            ADD=delta is not None,
            BLOCK=block,
            num_warps=4 if block > 512 else 2,
        )
    return out


def gelu_(x: Tensor) -> Tensor:
    """The exact GELU of ``x``, in place."""
    count = x.numel()
    if count:
        _gelu_kernel[(triton.cdiv(count, 2048),)](x, count, BLOCK=2048, num_warps=8)
    return x


def choose(
    logits: Tensor,
    barred: Tensor,
    first: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    expected: Tensor,
) -> tuple[Tensor, Tensor]:
    """A token for every row of ``logits`` [N, V], and its log-probability among those not barred.

    ``barred`` [2, V]: what is added to the logits of any token, and of the first of a text; ``first``
    and ``seeds`` [N] int32, ``temperatures`` [N] float32: 0 takes the likeliest; ``expected`` [N] int32: a
    token that is taken whatever is likely, or -1.
    """
    count, vocabulary = logits.shape
    tokens = torch.empty(count, dtype=torch.int32, device=logits.device)
    logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
    if count:
        _choose_kernel[(count,)](
            logits,
            barred,
            first.contiguous(),
            temperatures.contiguous(),
            seeds.contiguous(),
            expected.contiguous(),
            tokens,
            logprobs,
            vocabulary,
            BLOCK=4096,
            num_warps=8,
        )
    return tokens, logprobs
