"""64 floating-point elements at a time: taken apart into exponent and the rest, and put together again.

An element of `N` bits is sign, exponent, `mantissa_bits` of mantissa. Its rest is the mantissa with the sign above it:
`N / 8 - 1` whole bytes, lowest first, and a tail of fewer than 8 bits. Accesses are unaligned and unchecked.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from pdkv_connector.codec.simd import LANES, VECTOR, _load, _pointer, _store


def _wide(width: int) -> Any:
    return ir.VectorType(ir.IntType(width), LANES)


def _splat_as(builder: Any, value: Any, width: int) -> Any:
    """A 64-bit scalar in all lanes of `width` bits."""
    narrow = builder.trunc(value, ir.IntType(width)) if width < value.type.width else value
    kind = _wide(width)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), narrow, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _narrow(builder: Any, value: Any, width: int) -> Any:
    return value if width == 8 else builder.trunc(value, VECTOR)


def _widen(builder: Any, value: Any, width: int) -> Any:
    return value if width == 8 else builder.zext(value, _wide(width))


@intrinsic
def split_elements(
    typing: Any, elements: Any, at: Any, base: Any, base_at: Any, mantissa_bits: Any, exponent_mask: Any,
    delta: Any, low: Any, low_stride: Any, tail: Any, here: Any,
) -> Any:  # fmt: skip
    """Take apart elements `at .. at + 64`; results go to `here .. here + 64` of each output.

    delta: uint8, exponent - base modulo 256. low: uint8, whole bytes of the rest, `low_stride` apart. tail: uint8.
    """
    width = elements.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args

        def place(position: int, index: Any, target: Any) -> Any:
            return _pointer(context, builder, kinds[position], args[position], index, target)

        value = _load(builder, place(0, args[1], _wide(width)))
        bases = _load(builder, place(2, args[3], VECTOR))
        shift = _splat_as(builder, args[4], width)
        one = ir.Constant(_wide(width), [1] * LANES)
        exponent = builder.and_(builder.lshr(value, shift), _splat_as(builder, args[5], width))
        _store(builder, builder.sub(_narrow(builder, exponent, width), bases), place(6, args[10], VECTOR))
        mantissa = builder.and_(value, builder.sub(builder.shl(one, shift), one))
        sign = builder.lshr(value, ir.Constant(_wide(width), [width - 1] * LANES))
        rest = builder.or_(mantissa, builder.shl(sign, shift))
        index = args[10]
        for j in range(width // 8):
            part = builder.lshr(rest, ir.Constant(_wide(width), [8 * j] * LANES))
            target = place(7, index, VECTOR) if j < width // 8 - 1 else place(9, args[10], VECTOR)
            _store(builder, _narrow(builder, part, width), target)
            index = builder.add(index, args[8])
        return context.get_dummy_value()

    i64 = types.int64
    signature = types.void(elements, i64, base, i64, i64, i64, delta, low, i64, tail, i64)
    return signature, codegen


@intrinsic
def take_exponents(
    typing: Any, elements: Any, at: Any, mantissa_bits: Any, exponent_mask: Any, out: Any, here: Any
) -> Any:
    """Write the exponents of elements `at .. at + 64` to bytes `here .. here + 64` of uint8 array `out`."""
    width = elements.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        source = _pointer(context, builder, signature.args[0], args[0], args[1], _wide(width))
        exponent = builder.lshr(_load(builder, source), _splat_as(builder, args[2], width))
        exponent = builder.and_(exponent, _splat_as(builder, args[3], width))
        target = _pointer(context, builder, signature.args[4], args[4], args[5], VECTOR)
        _store(builder, _narrow(builder, exponent, width), target)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(elements, i64, i64, i64, out, i64), codegen


@intrinsic
def join_elements(
    typing: Any, elements: Any, at: Any, base: Any, base_at: Any, mantissa_bits: Any, exponent_mask: Any,
    delta: Any, low: Any, low_stride: Any, tail: Any, here: Any,
) -> Any:  # fmt: skip
    """The inverse of `split_elements`, with the same arguments; `low` may start anywhere."""
    width = elements.dtype.bitwidth

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args

        def place(position: int, index: Any, target: Any) -> Any:
            return _pointer(context, builder, kinds[position], args[position], index, target)

        bases = _load(builder, place(2, args[3], VECTOR))
        deltas = _load(builder, place(6, args[10], VECTOR))
        shift = _splat_as(builder, args[4], width)
        one = ir.Constant(_wide(width), [1] * LANES)
        exponent = _widen(builder, builder.add(deltas, bases), width)
        exponent = builder.and_(exponent, _splat_as(builder, args[5], width))
        rest: Any = ir.Constant(_wide(width), [0] * LANES)
        index = args[10]
        for j in range(width // 8):
            source = place(7, index, VECTOR) if j < width // 8 - 1 else place(9, args[10], VECTOR)
            part = _widen(builder, _load(builder, source), width)
            rest = builder.or_(rest, builder.shl(part, ir.Constant(_wide(width), [8 * j] * LANES)))
            index = builder.add(index, args[8])
        mantissa = builder.and_(rest, builder.sub(builder.shl(one, shift), one))
        sign = builder.shl(builder.lshr(rest, shift), ir.Constant(_wide(width), [width - 1] * LANES))
        value = builder.or_(builder.or_(mantissa, sign), builder.shl(exponent, shift))
        _store(builder, value, place(0, args[1], _wide(width)))
        return context.get_dummy_value()

    i64 = types.int64
    signature = types.void(elements, i64, base, i64, i64, i64, delta, low, i64, tail, i64)
    return signature, codegen
