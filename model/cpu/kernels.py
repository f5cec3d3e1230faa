"""The decoder for CPUs, compiled by numba: one call a layer instead of some forty small operations.

Weights are int8, scaled per output; activations are rounded to 14 bits or so per row, which an int16
holds, and multiplied exactly: a row's result depends on nothing but the row. What attention reads of
the audio is bf16. Sums of the residual stream are fp32.

The functions ending in ``_`` do what numba lacks (reading bf16, prefetching, fast exp and erf): they
work on scalars and are compiled into their callers.

Letters in shape comments: R rows (B sequences of T tokens each), D state, H heads, d = D / H = 64,
C tokens a sequence can have, A windows, F audio frames, N outputs, K inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from . import kernel_dot
from .numba_cache import cached_njit, intrinsic

__all__ = [
    "FAST",
    "HEAD_SIZE",
    "bf16_",
    "decode_layer",
    "erf_",
    "exp_",
    "linear_part",
    "normalise",
    "prefetch_",
]

# Sums may be taken in any order, which is what lets them be vectorised; NaN and infinity stay.
FAST = {"reassoc", "contract", "arcp", "nsz"}

_I8, _I32 = ir.IntType(8), ir.IntType(32)


@intrinsic
def bf16_(typing: Any, bits: Any) -> Any:
    """The number whose bf16 form has these ``bits`` (int16): the upper half of a float32."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = builder.shl(builder.zext(arguments[0], _I32), ir.Constant(_I32, 16))
        return builder.bitcast(wide, ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic
def _float_of_bits(typing: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def prefetch_(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Asks for the cache line of ``array[row, column]``: the hardware alone leaves half the speed unused."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, arguments[0])
        item = cgutils.get_item_pointer(
            context, builder, kind, view, list(arguments[1:]), wraparound=False
        )
        pointer = _I8.as_pointer()
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32]),
            "llvm.prefetch.p0i8",
        )
        read, keep, data = (ir.Constant(_I32, value) for value in (0, 2, 1))
        builder.call(function, [builder.bitcast(item, pointer), read, keep, data])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


_LOG2_E = np.float32(1.4426950408889634)
# 2^f for f in -0.5..0.5: the Taylor series, whose next term is 1e-7
_C1, _C2, _C3, _C4, _C5, _C6 = (
    np.float32(np.log(2.0) ** n / factorial)
    for n, factorial in enumerate((1, 2, 6, 24, 120, 720), start=1)
)


@njit(fastmath=FAST, inline="always")
def exp_(x: Any) -> Any:
    """e to the ``x``, which is at most 0; to 2e-7 of 1."""
    t = max(x, np.float32(-87.0)) * _LOG2_E
    whole = np.int32(t - np.float32(0.5))  # towards zero, so to the nearest
    f = t - np.float32(whole)
    series = np.float32(1.0) + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return series * _float_of_bits((whole + np.int32(127)) << np.int32(23))


@njit(fastmath=FAST, inline="always")
def erf_(x: Any) -> Any:
    """The error function, to 5e-7. Source: Abramowitz and Stegun, formula 7.1.26."""
    a = abs(x)
    t = np.float32(1.0) / (np.float32(1.0) + np.float32(0.3275911) * a)
    series = t * (
        np.float32(0.254829592)
        + t
        * (
            np.float32(-0.284496736)
            + t
            * (
                np.float32(1.421413741)
                + t * (np.float32(-1.453152027) + t * np.float32(1.061405429))
            )
        )
    )
    value = np.float32(1.0) - series * exp_(-a * a)
    return value if x >= 0 else -value


HEAD_SIZE = 64  # of every Whisper model; a constant lets the inner loops unroll
_AHEAD = 32  # rows of weights fetched in advance
_CACHE_LINE = 64  # bytes
_OUTPUTS, _ROWS = 4, 4  # of a tile: as many sums as there are registers for
_tile_of_rows = kernel_dot.dot_tile(_OUTPUTS, _ROWS)
_tile_of_one = kernel_dot.dot_tile(_OUTPUTS, 1)
_EPSILON = np.float32(1e-5)
_SCALE = np.float32(HEAD_SIZE**-0.5)


SOURCES = (kernel_dot.__file__,)  # every other file that is compiled into these kernels


def _kernel(function: Callable[..., Any]) -> Any:
    return cached_njit(function, sources=SOURCES, fastmath=FAST)


@_kernel
def _round_rows(x: Any, out: Any, units: Any) -> None:
    """Round ``x`` [R, K] to ``out`` [R, K] int16 and ``units`` [R], so that out * unit is x.

    As fine as a sum of K products with int8 fits in an int32.
    """
    rows, size = x.shape
    levels = np.float32(min(32767, (2**31 - 1) // (128 * size)))
    for r in range(rows):
        largest = np.float32(1e-12)
        for k in range(size):
            largest = max(largest, abs(x[r, k]))
        factor = levels / largest
        units[r] = largest / levels
        for k in range(size):
            scaled = x[r, k] * factor
            out[r, k] = np.int16(scaled + (np.float32(0.5) if scaled >= 0 else np.float32(-0.5)))


@_kernel
def linear_part(x: Any, matrix: Any, out: Any, begin: int, end: int) -> None:
    """Multiply ``x`` [R, K] with ``matrix`` into the columns ``begin`` to ``end``, at least 4, of ``out`` [R, N].

    ``matrix``: ``weight`` [N, K] int8 in units of ``scale`` [N], and ``bias`` [N], which is added.
    """
    weight, scale, bias = matrix
    rows, size = x.shape
    rounded = np.empty((rows, size), np.int16)
    units = np.empty(rows, np.float32)
    _round_rows(x, rounded, units)
    fours = np.empty((_OUTPUTS, _ROWS), np.int32)
    ones = np.empty((_OUTPUTS, 1), np.int32)
    for first in range(begin, end, _OUTPUTS):
        n = min(first, end - _OUTPUTS)  # the last tile may do some outputs again
        for i in range(_OUTPUTS):
            coming = min(n + _AHEAD + i, end - 1)
            for k in range(0, size, _CACHE_LINE):
                prefetch_(weight, coming, k)
        whole = rows - rows % _ROWS
        for r in range(0, whole, _ROWS):
            _tile_of_rows(weight, n, rounded, r, fours)
            for i in range(_OUTPUTS):
                for j in range(_ROWS):
                    value = np.float32(fours[i, j]) * (units[r + j] * scale[n + i])
                    out[r + j, n + i] = value + bias[n + i]
        for r in range(whole, rows):
            _tile_of_one(weight, n, rounded, r, ones)
            for i in range(_OUTPUTS):
                out[r, n + i] = np.float32(ones[i, 0]) * (units[r] * scale[n + i]) + bias[n + i]


@_kernel
def linear(x: Any, matrix: Any, out: Any) -> None:
    """Multiply ``x`` with ``matrix`` into all columns of ``out``; see ``linear_part``."""
    linear_part(x, matrix, out, 0, out.shape[1])


@_kernel
def normalise(x: Any, norm: Any, out: Any) -> None:
    """Write the layer norm of the rows ``x`` [R, D] to ``out``; ``norm``: gain and bias, each [D]."""
    gain, bias = norm
    rows, size = x.shape
    for r in range(rows):
        total = np.float32(0)
        for k in range(size):
            total += x[r, k]
        mean = total / np.float32(size)
        squares = np.float32(0)
        for k in range(size):
            difference = x[r, k] - mean
            squares += difference * difference
        factor = np.float32(1) / np.sqrt(squares / np.float32(size) + _EPSILON)
        for k in range(size):
            out[r, k] = (x[r, k] - mean) * factor * gain[k] + bias[k]


@_kernel
def _softmax(scores: Any, count: int) -> Any:
    """Turn ``scores`` [count] into exponentials and return their sum."""
    largest = scores[0]
    for s in range(1, count):
        largest = max(largest, scores[s])
    total = np.float32(0)
    for s in range(count):
        value = exp_(scores[s] - largest)
        scores[s] = value
        total += value
    return total


@_kernel
def attend_text(qkv: Any, positions: Any, cache: Any, out: Any) -> None:
    """Self-attention: enter keys and values of the rows in the cache, then let each row look back.

    ``qkv``: [R, 3 * D]; ``positions``: [R]; ``cache``: keys and values, [B, H, C, d]; ``out``: [R, D].
    """
    keys, values = cache
    rows = len(positions)
    sequences, heads, _, _ = keys.shape
    length = rows // sequences
    state = heads * HEAD_SIZE
    for r in range(rows):
        at = positions[r]
        for h in range(heads):
            for j in range(HEAD_SIZE):
                keys[r // length, h, at, j] = qkv[r, state + h * HEAD_SIZE + j]
                values[r // length, h, at, j] = qkv[r, 2 * state + h * HEAD_SIZE + j]
    scores = np.empty(keys.shape[2], np.float32)
    for r in range(rows):
        count = positions[r] + 1
        for h in range(heads):
            query = qkv[r, h * HEAD_SIZE : (h + 1) * HEAD_SIZE]
            own = keys[r // length, h]
            for s in range(count):
                total = np.float32(0)
                for j in range(HEAD_SIZE):
                    total += query[j] * own[s, j]
                scores[s] = total * _SCALE
            share = np.float32(1) / _softmax(scores, count)
            read = values[r // length, h]
            target = out[r, h * HEAD_SIZE : (h + 1) * HEAD_SIZE]
            target[:] = np.float32(0)
            for s in range(count):
                weight = scores[s] * share
                for j in range(HEAD_SIZE):
                    target[j] += weight * read[s, j]


@_kernel
def attend_audio(queries: Any, cache: Any, slots: Any, seen: Any, out: Any) -> None:
    """Compute the cross-attention of the rows to their window.

    ``queries``: [R, D]; ``cache``: keys and values, [A, H, F, d] bf16 as int16; ``out``: [R, D]. A head h
    with ``slots`` [H] not below 0 leaves its scores before the softmax in ``seen`` [B, slots, T, F].
    """
    keys, values = cache
    rows = queries.shape[0]
    windows, heads, size, _ = keys.shape
    length = seen.shape[2]
    scores = np.empty(size, np.float32)
    for h in range(heads):
        for r in range(rows):
            window = r * windows // rows
            query = queries[r, h * HEAD_SIZE : (h + 1) * HEAD_SIZE]
            own = keys[window, h]
            for s in range(size):
                total = np.float32(0)
                for j in range(HEAD_SIZE):
                    total += query[j] * bf16_(own[s, j])
                scores[s] = total * _SCALE
            if slots[h] >= 0:
                seen[r // length, slots[h], r % length, :] = scores
            share = np.float32(1) / _softmax(scores, size)
            read = values[window, h]
            target = out[r, h * HEAD_SIZE : (h + 1) * HEAD_SIZE]
            target[:] = np.float32(0)
            for s in range(size):
                weight = scores[s] * share
                for j in range(HEAD_SIZE):
                    target[j] += weight * bf16_(read[s, j])


@_kernel
def gelu(x: Any) -> None:
    """The exact form, in place."""
    rows, size = x.shape
    for r in range(rows):
        for k in range(size):
            value = x[r, k]
            x[r, k] = (
                np.float32(0.5) * value * (np.float32(1) + erf_(value * np.float32(0.70710678)))
            )


@_kernel
def _add(x: Any, y: Any) -> None:
    rows, size = x.shape
    for r in range(rows):
        for k in range(size):
            x[r, k] += y[r, k]


@_kernel
def decode_layer(
    x: Any,
    positions: Any,
    text: Any,
    audio: Any,
    slots: Any,
    seen: Any,
    norms: Any,
    matrices: Any,
) -> None:
    """Run one decoder layer on ``x`` [R, D] in place.

    ``text`` and ``audio`` are keys and values, see ``attend_text`` and ``attend_audio``; ``norms`` and
    ``matrices`` are the layer's weights in the order in which they are used. Groups are plain tuples:
    numba takes three times as long over the arguments of a call if they are named ones.
    """
    attn_norm, cross_norm, mlp_norm = norms
    attn_qkv, attn_out, cross_query, cross_out, mlp_in, mlp_out = matrices
    rows, state = x.shape
    h = np.empty((rows, state), np.float32)
    y = np.empty((rows, state), np.float32)
    qkv = np.empty((rows, 3 * state), np.float32)
    normalise(x, attn_norm, h)
    linear(h, attn_qkv, qkv)
    attend_text(qkv, positions, text, h)
    linear(h, attn_out, y)
    _add(x, y)
    normalise(x, cross_norm, h)
    linear(h, cross_query, y)
    attend_audio(y, audio, slots, seen, h)
    linear(h, cross_out, y)
    _add(x, y)
    normalise(x, mlp_norm, h)
    wide = np.empty((rows, 4 * state), np.float32)
    linear(h, mlp_in, wide)
    gelu(wide)
    linear(wide, mlp_out, y)
    _add(x, y)
