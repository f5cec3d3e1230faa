"""Products of int8 weights with int16 activations: a tile of them at once, written out in vector code.

LLVM vectorises one such sum by itself, but not several that share their operands, which is three times
as fast.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core import cgutils

from .numba_cache import intrinsic

__all__ = ["LANES", "dot_tile"]

_WIDE = bool(llvmlite.binding.get_host_cpu_features().get("avx512bw"))
LANES = 32 if _WIDE else 16  # int16 in a register
# multiplies pairs of int16 and adds each two products: half as many int32
_MULTIPLY = "llvm.x86.avx512.pmaddw.d.512" if _WIDE else "llvm.x86.avx2.pmadd.wd"
_REDUCE = f"llvm.vector.reduce.add.v{LANES // 2}i32"

_I32 = ir.IntType(32)
_WEIGHTS = ir.VectorType(ir.IntType(8), LANES)
_VALUES = ir.VectorType(ir.IntType(16), LANES)
_SUMS = ir.VectorType(_I32, LANES // 2)


def dot_tile(outputs: int, rows: int) -> Any:
    """A function ``(weight, n, x, r, sums)`` for use in kernels.

    It writes the dot products of rows n.. of ``weight`` [N, K] int8 with rows r.. of ``x`` [R, K] int16
    to ``sums`` [outputs, rows] int32. K must be a multiple of ``LANES``, and all arrays contiguous.
    """

    @intrinsic
    def tile(typing: Any, weight: Any, n: Any, x: Any, r: Any, sums: Any) -> Any:
        signature = types.void(weight, types.intp, x, types.intp, sums)
        return signature, _generator(outputs, rows)

    return tile


def _generator(outputs: int, rows: int) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weight, n, x, r, sums = arguments
        weight_kind, _, x_kind, _, sums_kind = signature.args
        weights = context.make_array(weight_kind)(context, builder, weight)
        values = context.make_array(x_kind)(context, builder, x)
        size = cgutils.unpack_tuple(builder, weights.shape, 2)[1]
        zero = context.get_constant(types.intp, 0)

        def starts(kind: Any, array: Any, first: Any, count: int) -> list[Any]:
            places = [builder.add(first, ir.Constant(first.type, i)) for i in range(count)]
            return [
                cgutils.get_item_pointer(
                    context, builder, kind, array, [place, zero], wraparound=False
                )
                for place in places
            ]

        def load(pointer: Any, at: Any, kind: Any, align: int) -> Any:
            there = builder.bitcast(builder.gep(pointer, [at]), kind.as_pointer())
            return builder.load(there, align=align)

        weight_rows = starts(weight_kind, weights, n, outputs)
        value_rows = starts(x_kind, values, r, rows)
        totals = [
            [cgutils.alloca_once_value(builder, ir.Constant(_SUMS, None)) for _ in range(rows)]
            for _ in range(outputs)
        ]
        multiply = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_SUMS, [_VALUES, _VALUES]), _MULTIPLY
        )
        lanes = context.get_constant(types.intp, LANES)
        with cgutils.for_range(builder, builder.udiv(size, lanes)) as loop:
            at = builder.mul(loop.index, lanes)
            loaded = [load(row, at, _VALUES, 2) for row in value_rows]
            for i, row in enumerate(weight_rows):
                wide = builder.sext(load(row, at, _WEIGHTS, 1), _VALUES)
                for j, value in enumerate(loaded):
                    product = builder.call(multiply, [wide, value])
                    total = totals[i][j]
                    builder.store(builder.add(builder.load(total), product), total)
        reduce = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_I32, [_SUMS]), _REDUCE
        )
        target = context.make_array(sums_kind)(context, builder, sums)
        for i in range(outputs):
            for j in range(rows):
                place = [context.get_constant(types.intp, value) for value in (i, j)]
                pointer = cgutils.get_item_pointer(
                    context, builder, sums_kind, target, place, wraparound=False
                )
                builder.store(builder.call(reduce, [builder.load(totals[i][j])]), pointer)
        return context.get_dummy_value()

    return generate
