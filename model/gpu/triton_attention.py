"""Attention over caches in slots on the GPU, as Triton kernels: any number of rows, each of its own length.

Import it only where Triton is. Letters: B rows, T tokens of each, H heads, d = 64 channels of a head,
N = B * T, C places of a slot.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["attend_audio", "attend_text", "store"]

_LOG2_E = 1.4426950408889634
_KEYS = 64  # read at once


@triton.jit  # type: ignore[untyped-decorator]
def _absorb(  # type: ignore[no-untyped-def]
    q, k_ptr, v_ptr, at, seen, best, total, acc, channels, scale,
    SIZE: tl.constexpr, BLOCK_N: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The running softmax goes on over BLOCK_N keys from ``at`` on; a query sees those below ``seen``."""
    n = at + tl.arange(0, BLOCK_N)
    last = tl.max(seen, 0)
    where = n[:, None] * SIZE + channels[None, :]
    k = tl.load(k_ptr + where, mask=(n < last)[:, None], other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    scores = tl.where(n[None, :] < seen[:, None], scores, float("-inf"))
    top = tl.maximum(best, tl.max(scores, 1))
    # a query that has seen no key yet has nothing to subtract
    base = tl.where(top == float("-inf"), 0.0, top)
    chances = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(best - base)
    v = tl.load(v_ptr + where, mask=(n < last)[:, None], other=0.0)
    total = total * shrink + tl.sum(chances, 1)
    acc = acc * shrink[:, None] + tl.dot(chances.to(v.dtype), v, input_precision=PRECISION)
    return top, total, acc


@triton.jit(do_not_specialize=["T"])  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    q_ptr,  # [B, T, H, d]
    k_ptr,  # [slots, H, C, d]
    v_ptr,
    out_ptr,  # [B, T, H, d]
    slot_ptr,  # [B]
    limit_ptr,  # CAUSAL: positions [B, T]; else keys of each row [B]
    tail_k_ptr,  # [H, tail, d], keys after those of every row
    tail_v_ptr,
    tail_ptr,  # [B], how many of them a row has
    T,
    q_row,
    q_token,
    k_slot,
    k_head,
    tail_head,
    scale,
    CAUSAL: tl.constexpr,
    TAIL: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    heads = tl.num_programs(1)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    m = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    channels = tl.arange(0, SIZE)
    inside = m < T
    q_at = q_ptr + row.to(tl.int64) * q_row + head * SIZE
    q = tl.load(q_at + m[:, None] * q_token + channels[None, :], mask=inside[:, None], other=0.0)
    if CAUSAL:
        seen = tl.load(limit_ptr + row * T + m, mask=inside, other=0) + 1
    else:
        seen = tl.zeros((BLOCK_M,), tl.int32) + tl.load(limit_ptr + row)
    end = tl.max(seen, 0)
    at = slot * k_slot + head * k_head
    best = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, SIZE), tl.float32)
    for n in range(0, end, BLOCK_N):
        best, total, acc = _absorb(
            q, k_ptr + at, v_ptr + at, n, seen, best, total, acc, channels, scale,
            SIZE, BLOCK_N, PRECISION,
        )  # fmt: skip
    if TAIL:
        more = tl.zeros((BLOCK_M,), tl.int32) + tl.load(tail_ptr + row)
        k_tail = tail_k_ptr + head * tail_head
        v_tail = tail_v_ptr + head * tail_head
        for n in range(0, tl.max(more, 0), BLOCK_N):
            best, total, acc = _absorb(
                q, k_tail, v_tail, n, more, best, total, acc, channels, scale,
                SIZE, BLOCK_N, PRECISION,
            )  # fmt: skip
    out = acc / total[:, None]
    place = ((row.to(tl.int64) * T + m[:, None]) * heads + head) * SIZE + channels[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _store_kernel(  # type: ignore[no-untyped-def]
    k_ptr,  # [N, H, d], tokens ``token`` apart
    v_ptr,
    cache_k_ptr,  # [slots, H, C, d]
    cache_v_ptr,
    slot_ptr,  # [N]
    position_ptr,  # [N]
    token,
    slot_stride,
    head_stride,
    WIDTH,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0)
    slot = tl.load(slot_ptr + n).to(tl.int64)
    position = tl.load(position_ptr + n)
    at = tl.arange(0, BLOCK)
    inside = at < WIDTH
    place = slot * slot_stride + (at // SIZE) * head_stride + position * SIZE + at % SIZE
    source = n.to(tl.int64) * token + at
    tl.store(cache_k_ptr + place, tl.load(k_ptr + source, mask=inside), mask=inside)
    tl.store(cache_v_ptr + place, tl.load(v_ptr + source, mask=inside), mask=inside)


def attend_text(q: Tensor, k: Tensor, v: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """``q`` [B, T, H, d] over ``k`` and ``v`` [slots, H, C, d]; a query sees the places up to its own.

    ``slots`` [B] and ``positions`` [B, T] are int32. Returns [B, T, H * d].
    """
    return _attend(q, k, v, slots, positions, None)


def attend_audio(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    lengths: Tensor,
    tail: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """``q`` [B, T, H, d] over the first ``lengths`` [B] places of ``slots`` [B], all int32.

    ``tail``: keys and values [H, F, d] that follow those of a row, and how many of them each has [B].
    Returns [B, T, H * d].
    """
    return _attend(q, k, v, slots, lengths, tail)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slots: Tensor,
    limits: Tensor,
    tail: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor:
    rows, width, heads, size = q.shape
    out = torch.empty((rows, width, heads * size), dtype=q.dtype, device=q.device)
    block = 16 if width <= 16 else 32 if width <= 32 else 64
    tail_k, tail_v, tail_lengths = tail if tail is not None else (k, v, slots)
    _attend_kernel[(rows, heads, triton.cdiv(width, block))](
        q,
        k,
        v,
        out,
        slots.contiguous(),  # the kernels know no strides of these
        limits.contiguous(),
        tail_k,
        tail_v,
        tail_lengths.contiguous(),
        width,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        tail_k.stride(0),
        size**-0.5 * _LOG2_E,
        CAUSAL=limits.dim() == 2,
        TAIL=tail is not None,
        SIZE=size,
        BLOCK_M=block,
        BLOCK_N=_KEYS,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=3,
    )
    return out


def store(
    k: Tensor, v: Tensor, cache_k: Tensor, cache_v: Tensor, slots: Tensor, positions: Tensor
) -> None:
    """Enters ``k`` and ``v`` [N, H, d] in the caches [slots, H, C, d] at ``slots`` and ``positions`` [N]."""
    count, heads, size = k.shape
    width = heads * size
    _store_kernel[(count,)](
        k,
        v,
        cache_k,
        cache_v,
        slots.contiguous(),
        positions.contiguous(),
        k.stride(0),
        cache_k.stride(0),
        cache_k.stride(1),
        width,
        SIZE=size,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )
