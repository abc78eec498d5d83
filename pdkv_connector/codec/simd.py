"""64 bytes at a time: the few vector operations that numba does not find by itself, as LLVM IR for any processor.

A mask is a uint64 with bit `i` for byte `i`. LLVM turns these into AVX-512, AVX2 or NEON code. Every access is
unaligned and unchecked: `at .. at + 64` must lie inside the array.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64
Array = Any
Word = Any
"""A numpy array, and a uint64, as numba sees them."""
BYTE, WORD = ir.IntType(8), ir.IntType(64)
VECTOR, MASK = ir.VectorType(BYTE, LANES), ir.VectorType(ir.IntType(1), LANES)
HAS_BMI2 = bool(binding.get_host_cpu_features().get("bmi2", False))


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any, target: Any) -> Any:
    """Address of element `at` of a 1-D array, as a pointer to `target`."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [at]), target.as_pointer())


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(pointer)
    value.align = 1
    return value


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, pointer).align = 1


def _splat(builder: Any, byte: Any) -> Any:
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), byte, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, first, zeros)


def _mask_of(builder: Any, word: Any) -> Any:
    return builder.bitcast(word, MASK)


@intrinsic
def load_word(typing: Any, data: Any, at: Any) -> Any:
    """The 8 bytes of uint8 array `data` from `at` on, as a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, _pointer(context, builder, signature.args[0], args[0], args[1], WORD))

    return types.uint64(data, types.int64), codegen


@intrinsic
def store_word(typing: Any, data: Any, at: Any, word: Any) -> Any:
    """Write uint64 `word` over the 8 bytes of uint8 array `data` from `at` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[2], _pointer(context, builder, signature.args[0], args[0], args[1], WORD))
        return context.get_dummy_value()

    return types.void(data, types.int64, types.uint64), codegen


@intrinsic
def equal_mask(typing: Any, data: Any, at: Any, value: Any) -> Any:
    """Which of the 64 bytes from `at` on equal uint8 `value`."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _load(builder, _pointer(context, builder, signature.args[0], args[0], args[1], VECTOR))
        return builder.bitcast(builder.icmp_unsigned("==", vector, _splat(builder, args[2])), WORD)

    return types.uint64(data, types.int64, types.uint8), codegen


@intrinsic
def bit_mask(typing: Any, data: Any, at: Any, bit: Any) -> Any:
    """Which of the 64 bytes from `at` on have a bit of uint8 `bit` set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = _load(builder, _pointer(context, builder, signature.args[0], args[0], args[1], VECTOR))
        hit = builder.and_(vector, _splat(builder, args[2]))
        return builder.bitcast(builder.icmp_unsigned("!=", hit, ir.Constant(VECTOR, [0] * LANES)), WORD)

    return types.uint64(data, types.int64, types.uint8), codegen


@intrinsic
def store_choice(typing: Any, out: Any, at: Any, masks: Any, values: Any, count: Any) -> Any:
    """Write 64 bytes: `values[k]` where `masks[k]` is set, for the last such `k` in 1 .. count - 1, else `values[0]`.

    masks: uint64 array; values: uint8 array; count: a literal.
    """
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        out_type, _, mask_type, value_type, _ = signature.args
        index = [ir.Constant(WORD, k) for k in range(count.literal_value)]
        chosen = _splat(builder, _load(builder, _pointer(context, builder, value_type, args[3], index[0], BYTE)))
        for k in index[1:]:
            mask = _mask_of(builder, _load(builder, _pointer(context, builder, mask_type, args[2], k, WORD)))
            value = _load(builder, _pointer(context, builder, value_type, args[3], k, BYTE))
            chosen = builder.select(mask, _splat(builder, value), chosen)
        _store(builder, chosen, _pointer(context, builder, out_type, args[0], args[1], VECTOR))
        return context.get_dummy_value()

    return types.void(out, types.int64, masks, values, count), codegen


@intrinsic
def store_bits(typing: Any, out: Any, at: Any, masks: Any, count: Any) -> Any:
    """Write 64 bytes: bit `j` of byte `i` is bit `i` of `masks[j]`, for `j` in 0 .. count - 1; count: a literal."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        zero = ir.Constant(VECTOR, [0] * LANES)
        total = zero
        for j in range(count.literal_value):
            word = _load(builder, _pointer(context, builder, signature.args[2], args[2], ir.Constant(WORD, j), WORD))
            bits = builder.select(_mask_of(builder, word), ir.Constant(VECTOR, [1 << j] * LANES), zero)
            total = builder.or_(total, bits)
        _store(builder, total, _pointer(context, builder, signature.args[0], args[0], args[1], VECTOR))
        return context.get_dummy_value()

    return types.void(out, types.int64, masks, count), codegen


@intrinsic
def store_lookup(typing: Any, data: Any, at: Any, values: Any, count: Any) -> Any:
    """Replace each of the 64 bytes from `at` on by `values[byte]`, bytes from `count` on by themselves."""
    if not isinstance(count, types.IntegerLiteral):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(context, builder, signature.args[0], args[0], args[1], VECTOR)
        index = _load(builder, pointer)
        chosen = index
        for k in range(count.literal_value):
            value = _load(builder, _pointer(context, builder, signature.args[2], args[2], ir.Constant(WORD, k), BYTE))
            hit = builder.icmp_unsigned("==", index, ir.Constant(VECTOR, [k] * LANES))
            chosen = builder.select(hit, _splat(builder, value), chosen)
        _store(builder, chosen, pointer)
        return context.get_dummy_value()

    return types.void(data, types.int64, values, count), codegen


def _bmi2(name: str) -> Any:
    @intrinsic
    def call(typing: Any, word: Any, mask: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(WORD, [WORD, WORD])
            function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.bmi.{name}.64")
            return builder.call(function, args)

        return types.uint64(types.uint64, types.uint64), codegen

    return call


@intrinsic
def popcount(typing: Any, word: Any) -> Any:
    """Number of set bits of a uint64."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), codegen


@intrinsic
def lowest_bit(typing: Any, word: Any) -> Any:
    """Index of the lowest set bit of a uint64; 64 for zero."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), codegen


@njit(nogil=True)
def copy_words(source: Array, source_at: int, out: Array, out_at: int, num_bytes: int) -> None:
    """Copy `num_bytes`, rounded up to a multiple of 8, from uint8 array to uint8 array."""
    for i in range(0, num_bytes, 8):
        store_word(out, out_at + i, load_word(source, source_at + i))


@njit(nogil=True)
def pack_bits_portably(word: Word, mask: Word) -> Word:
    """Bits of `word` where `mask` is set, moved together at the low end."""
    packed, at, rest = np.uint64(0), np.uint64(0), np.uint64(mask)
    while rest:
        packed |= ((np.uint64(word) >> np.uint64(lowest_bit(rest))) & np.uint64(1)) << at
        rest &= rest - np.uint64(1)
        at += np.uint64(1)
    return packed


@njit(nogil=True)
def spread_bits_portably(word: Word, mask: Word) -> Word:
    """The low bits of `word`, in order, to where `mask` is set."""
    spread, at, rest = np.uint64(0), np.uint64(0), np.uint64(mask)
    while rest:
        spread |= ((np.uint64(word) >> at) & np.uint64(1)) << np.uint64(lowest_bit(rest))
        rest &= rest - np.uint64(1)
        at += np.uint64(1)
    return spread


pack_bits = _bmi2("pext") if HAS_BMI2 else pack_bits_portably
spread_bits = _bmi2("pdep") if HAS_BMI2 else spread_bits_portably
