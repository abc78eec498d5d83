"""Memory between two pages that nobody may touch: an access past either end is a SIGSEGV, not a lucky miss."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
PROT_NONE, CANARY = 0, 0xA5
_libc = ctypes.CDLL(None, use_errno=True)


class Fence:
    """At most `capacity` bytes, taken anew for each use from one end or the other."""

    def __init__(self, capacity: int) -> None:
        size = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = np.frombuffer(mmap.mmap(-1, size + 2 * mmap.PAGESIZE), np.uint8)
        for at in (whole.ctypes.data, whole.ctypes.data + mmap.PAGESIZE + size):
            if _libc.mprotect(ctypes.c_void_p(at), mmap.PAGESIZE, PROT_NONE):
                raise OSError(ctypes.get_errno(), "mprotect")
        self._inside: Bytes = whole[mmap.PAGESIZE : mmap.PAGESIZE + size]
        self._taken = slice(0, 0)

    def take(self, num_bytes: int, *, at_front: bool = False) -> Bytes:
        """Bytes that begin at a multiple of 8: at the front fence, or ending less than 8 bytes before the other."""
        start = 0 if at_front else (self._inside.size - num_bytes) // 8 * 8
        self._taken = slice(start, start + num_bytes)
        self._inside[max(0, start - 64) : start] = self._inside[start + num_bytes :][:64] = CANARY
        return self._inside[self._taken]

    def check(self) -> None:
        """Fail if bytes beside those taken were written."""
        before = self._inside[max(0, self._taken.start - 64) : self._taken.start]
        assert (before == CANARY).all()
        assert (self._inside[self._taken.stop :][:64] == CANARY).all()
