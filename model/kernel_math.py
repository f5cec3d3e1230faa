"""What numba lacks for the decoder kernels: reading bf16, prefetching, fast exp and erf.

The functions ending in ``_`` are compiled into their callers and work on scalars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils

from .jit import intrinsic

__all__ = ["FAST", "bf16_", "erf_", "exp_", "prefetch_"]

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
