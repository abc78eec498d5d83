"""What bench_codec compares: compressors on the raw slab or on its exponent plane, and this project's codecs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pdkv_connector.codec.cascade import Cascade
from pdkv_connector.codec.cascade_format import DTYPES, Section

Bytes = NDArray[np.uint8]


class Contender(Protocol):
    """One codec on one core, as a caller gets it: `encode` takes the bits of a slab, `decode` returns its bytes."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def encode(self, slab: NDArray[Any]) -> Any:
        """The payload, any object with a length in bytes that `size_bytes` can tell."""

    def decode(self, payload: Any) -> Any:
        """The slab's bytes, as anything with a buffer."""

    def size_bytes(self, payload: Any) -> int:
        """Bytes of `payload` as they would cross a link."""


class Peer(NamedTuple):
    """A compressor of a Python package: two functions from buffer to bytes."""

    name: str
    compress: Callable[[Any], bytes]
    decompress: Callable[[bytes], Any]

    def encode(self, slab: NDArray[Any]) -> bytes:
        return self.compress(slab.reshape(-1).view(np.uint8))

    def decode(self, payload: bytes) -> Any:
        return self.decompress(payload)

    def size_bytes(self, payload: bytes) -> int:
        return len(payload)


class OnExponents(NamedTuple):
    """A compressor on the exponent plane of bfloat16; sign and mantissa bytes travel as they are."""

    inner: Peer

    @property
    def name(self) -> str:
        return f"{self.inner.name}, exponents"

    def encode(self, slab: NDArray[Any]) -> tuple[bytes, Bytes]:
        exponents, rest = np.empty(slab.size, np.uint8), np.empty(slab.size, np.uint8)
        _split(slab.reshape(-1), exponents, rest)
        return self.inner.compress(exponents), rest

    def decode(self, payload: tuple[bytes, Bytes]) -> Bytes:
        exponents = np.frombuffer(self.inner.decompress(payload[0]), np.uint8)
        bits = np.empty(exponents.size, np.uint16)
        _join(exponents, payload[1], bits)
        return bits.view(np.uint8)

    def size_bytes(self, payload: tuple[bytes, Bytes]) -> int:
        return len(payload[0]) + payload[1].nbytes


@njit(nogil=True, cache=True)
def _split(bits: Any, exponents: Any, rest: Any) -> None:
    for i in range(bits.size):
        exponents[i] = (bits[i] >> 7) & 0xFF
        rest[i] = ((bits[i] >> 8) & 0x80) | (bits[i] & 0x7F)


@njit(nogil=True, cache=True)
def _join(exponents: Any, rest: Any, bits: Any) -> None:
    for i in range(bits.size):
        bits[i] = ((rest[i] & 0x80) << 8) | (exponents[i] << 7) | (rest[i] & 0x7F)


def _zstd(level: int) -> Peer:
    zstandard = importlib.import_module("zstandard")
    compressor, decompressor = zstandard.ZstdCompressor(level=level), zstandard.ZstdDecompressor()
    return Peer(f"zstd -{level}", compressor.compress, decompressor.decompress)


def _lz4() -> Peer:
    block = importlib.import_module("lz4.block")
    return Peer("lz4", block.compress, block.decompress)


def _blosc2(codec: str, level: int, shuffle: str) -> Peer:
    blosc2 = importlib.import_module("blosc2")
    how = {
        "codec": blosc2.Codec[codec], "clevel": level, "typesize": 2, "nthreads": 1, "filters": [blosc2.Filter[shuffle]]
    }  # fmt: skip
    name = f"blosc2 {shuffle.lower()}, {codec.lower()}" + (f" -{level}" if codec == "ZSTD" else "")
    return Peer(
        name, lambda data: blosc2.compress2(data, **how), lambda payload: blosc2.decompress2(payload, nthreads=1)
    )


def _zipnn() -> Peer:
    codec = importlib.import_module("zipnn").ZipNN(bytearray_dtype="bfloat16", threads=1)
    # It swaps bytes and signs in the caller's buffer, and so must be given a copy: that is part of its cost.
    return Peer("zipnn", lambda data: codec.compress(data.tobytes()), codec.decompress)


class Ours:
    """A codec of this project on a slab in wire order, between buffers that are there before, as in the rings."""

    def __init__(self, name: str, width: int, dtype: str) -> None:
        self.name = name
        self._codec, self._numbers = Cascade(width), DTYPES[dtype]
        self._out = self._back = np.empty(0, np.uint8)
        self._sections: tuple[Section, ...] = ()

    def encode(self, slab: NDArray[Any]) -> Bytes:
        layers, planes, heads, num_tokens, num_dims = slab.shape
        self._sections = (Section(self._numbers, layers * planes * heads, num_tokens, num_dims),)
        if self._out.size != slab.nbytes:
            self._out, self._back = np.empty(slab.nbytes, np.uint8), np.empty(slab.nbytes, np.uint8)
        num_bytes = self._codec.encode(slab.reshape(-1).view(np.uint8), self._sections, self._out)
        return self._out[:num_bytes]

    def decode(self, payload: Bytes) -> Bytes:
        self._codec.decode(payload, self._sections, self._back)
        return self._back

    def size_bytes(self, payload: Bytes) -> int:
        return payload.size


FACTORIES: dict[str, Callable[[str], Contender]] = {
    "split": lambda dtype: Ours("split", 2, dtype),
    "pack4": lambda dtype: Ours("pack4", 4, dtype),
    "zstd -1": lambda _: _zstd(1),
    "zstd -3": lambda _: _zstd(3),
    "zstd -1, exponents": lambda _: OnExponents(_zstd(1)),
    "zstd -3, exponents": lambda _: OnExponents(_zstd(3)),
    "lz4": lambda _: _lz4(),
    "blosc2 shuffle, zstd -1": lambda _: _blosc2("ZSTD", 1, "SHUFFLE"),
    "blosc2 bitshuffle, zstd -1": lambda _: _blosc2("ZSTD", 1, "BITSHUFFLE"),
    "blosc2 bitshuffle, lz4": lambda _: _blosc2("LZ4", 5, "BITSHUFFLE"),
    "zipnn": lambda _: _zipnn(),
}
"""Contender by name, for a dtype; a factory raises ImportError where its package is not installed."""


def contenders(dtype: str) -> tuple[list[Contender], dict[str, str]]:
    """Contenders that this machine has for slabs of `dtype`, and for each of the others what is missing."""
    found: list[Contender] = []
    missing: dict[str, str] = {}
    for name, factory in FACTORIES.items():
        try:
            found.append(factory(dtype))
        except ImportError as error:
            missing[name] = str(error)
    return found, missing
