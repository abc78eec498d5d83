"""Flat views of host tensors share their memory."""

from __future__ import annotations

import numpy as np
import pytest

from pdkv_connector.codec.host_view import as_units, flat_bytes
from pdkv_connector.errors import LayoutError

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "uint8"])
def test_torch_memory_is_shared(dtype: str) -> None:
    tensor = torch.zeros(8, dtype=getattr(torch, dtype))
    data = flat_bytes(tensor)
    data[:] = np.arange(data.size)
    assert tensor.view(torch.uint8).tolist() == list(range(data.size))
    assert as_units(data, 8).size * 8 == data.size


def test_what_is_not_flat_is_refused() -> None:
    with pytest.raises(LayoutError, match="has 2 axes"):
        flat_bytes(np.zeros((2, 3)))
    with pytest.raises(LayoutError, match="stride 16 bytes is not contiguous"):
        flat_bytes(np.zeros(8)[::2])
    with pytest.raises(LayoutError, match="on cpu, stride 2"):
        flat_bytes(torch.zeros(8)[::2])
