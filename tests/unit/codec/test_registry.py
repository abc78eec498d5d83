"""Codecs by name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pdkv_connector.codec.raw import RawCodec
from pdkv_connector.codec.registry import FACTORIES, create_codec
from pdkv_connector.errors import ConfigError


def test_names_on_the_wire_are_the_codecs_own() -> None:
    assert {name: create_codec(name).name for name in FACTORIES} == {name: name for name in FACTORIES}
    assert isinstance(create_codec("raw"), RawCodec)


def test_unknown_names_and_devices_are_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown codec 'zip'; this build has .*raw"):
        create_codec("zip")
    with pytest.raises(ConfigError, match="device type 'tpu'; use cpu or cuda"):
        create_codec("raw", "tpu")


def test_importing_codecs_pulls_in_no_compiler() -> None:
    code = "import sys; from pdkv_connector.codec import registry, raw; print({'numba', 'torch'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert out.stdout.strip() == "set()"
