"""The device's checksum against its definition: in Triton's interpreter, or on a GPU if told so."""

from __future__ import annotations

import numpy as np
import pytest

from pdkv_connector.codec.checksum import DeviceChecksum
from tests.kernels.scenes import DEVICE

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SIZES = [1, 7, 4095, 4096, 4097, 3 * 4096 + 5]


def defined(data: np.ndarray) -> int:
    """The sum, spelled out."""
    return sum(int(byte) * (2 * place + 1) * 0x9E3779B1 for place, byte in enumerate(data)) % (1 << 32) | 1 << 32


def on_device(data: np.ndarray) -> int:
    return DeviceChecksum().of(torch.from_numpy(data.copy()).to(DEVICE))


@pytest.mark.parametrize("size", SIZES)
def test_it_is_the_sum_of_all_bytes(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    assert on_device(data) == defined(data)


def test_nothing_has_a_checksum_too() -> None:
    assert on_device(np.empty(0, np.uint8)) == 1 << 32


@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 5000])
def test_one_byte_that_changed_or_moved_shows(place: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 5001, np.uint8)
    sound, changed = on_device(data), data.copy()
    changed[place] ^= 0x80
    assert on_device(changed) != sound
    assert on_device(np.roll(data, 1)) != sound
