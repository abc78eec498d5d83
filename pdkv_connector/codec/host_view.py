"""Host tensors as flat numpy arrays, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pdkv_connector.errors import LayoutError

UINTS: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def flat_bytes(tensor: Any) -> NDArray[np.uint8]:
    """A 1-D contiguous numpy array or CPU torch tensor of any dtype as the uint8 array over the same memory.

    Raises LayoutError when it is not flat, not contiguous or not in host memory.
    """
    if tensor.ndim != 1:
        raise LayoutError(f"KV tensor has {tensor.ndim} axes; give a flat view that starts at the region's origin")
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.c_contiguous:
            raise LayoutError(f"KV array with stride {tensor.strides[0]} bytes is not contiguous")
        return tensor.view(np.uint8)
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise LayoutError(f"KV tensor on {tensor.device}, stride {tensor.stride(0)}: give contiguous CPU memory")
    return _torch_bytes(tensor)


def _torch_bytes(tensor: Any) -> NDArray[np.uint8]:
    import torch

    array: NDArray[np.uint8] = tensor.detach().view(torch.uint8).numpy()
    return array


def as_units(data: NDArray[np.uint8], unit_bytes: int) -> NDArray[Any]:
    """`data` as unsigned integers of `unit_bytes`; a tail shorter than one unit is left out."""
    return data[: data.size // unit_bytes * unit_bytes].view(UINTS[unit_bytes])
