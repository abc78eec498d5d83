"""Settings: precedence, bounds, and errors that name the key, the value and the fix."""

from __future__ import annotations

import math

import msgspec
import pytest

from pdkv_connector.config import FIELDS, MIB, Config, describe, markdown_table
from pdkv_connector.errors import ConfigError


def test_defaults_are_valid() -> None:
    config = Config.from_sources({}, {})
    assert config == Config()
    assert config.num_slots == 32


def test_mapping_wins_over_environment_wins_over_default() -> None:
    environ = {"PDKV_LEASE_S": "20", "PDKV_RETRY_S": "0.25"}
    config = Config.from_sources({"lease_s": 10}, environ)
    assert (config.lease_s, config.retry_s, config.resend_s) == (10.0, 0.25, Config().resend_s)


def test_environment_is_parsed_by_type() -> None:
    environ = {
        "PDKV_CONTROL_PORT": "7000",
        "PDKV_INTEGRITY": "false",
        "PDKV_NIXL_PARAMS": '{"num_threads": "2"}',
        "PDKV_MODEL_ID": "7",
        "PATH": "/bin",
        "PDKV_TEST_ANYTHING": "x",
    }
    config = Config.from_sources({}, environ)
    assert (config.control_port, config.integrity, config.model_id) == (7000, False, "7")
    assert config.nixl_params == {"num_threads": "2"}


def test_config_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Config().lease_s = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"slot_byte": 1}, ["'slot_byte'", "did you mean 'slot_bytes'"]),
        ({"zzzzzz": 1}, ["'zzzzzz'", "known: control_host"]),
        ({"slot_bytes": "2MiB"}, ["slot_bytes='2MiB'", "int from 4096 to"]),
        ({"slot_bytes": 1}, ["slot_bytes=1", "from 4096 to 1073741824"]),
        ({"slot_bytes": True}, ["slot_bytes=True", "int"]),
        ({"control_port": 65536}, ["control_port=65536", "from 0 to 65535"]),
        ({"lease_s": math.nan}, ["lease_s=nan", "float from 1"]),
        ({"lease_s": math.inf}, ["lease_s=inf", "to 3600"]),
        ({"integrity": 1}, ["integrity=1", "bool"]),
        ({"transport": "tcp"}, ["transport='tcp'", "'nixl', 'loopback'"]),
        ({"nixl_params": {"a": 1}}, ["nixl_params={'a': 1}", "object of text to text"]),
        ({"control_host": ""}, ["control_host=''", "1 to 255 characters"]),
        ({"ring_bytes": 3 * MIB}, [f"ring_bytes={3 * MIB}", f"at least {4 * MIB}"]),
        ({"window_slots": 33}, ["window_slots=33", "at most 32"]),
        ({"heartbeat_s": 15}, ["heartbeat_s=15", "lease_s=30", "lower heartbeat_s"]),
    ],
)
def test_bad_mapping_is_refused(extra: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_sources(extra, {})
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PDKV_LEASE": "1"}, ["'PDKV_LEASE'", "did you mean 'PDKV_LEASE_S'"]),
        ({"PDKV_LEASE_S": "soon"}, ["PDKV_LEASE_S='soon'", "float from 1"]),
        ({"PDKV_LEASE_S": "nan"}, ["PDKV_LEASE_S='nan'"]),
        ({"PDKV_INTEGRITY": "maybe"}, ["PDKV_INTEGRITY='maybe'", "bool"]),
        ({"PDKV_NIXL_PARAMS": "{"}, ["PDKV_NIXL_PARAMS='{'", "JSON object"]),
        ({"PDKV_NIXL_PARAMS": "[1]"}, ["PDKV_NIXL_PARAMS=", "object of text to text"]),
    ],
)
def test_bad_environment_is_refused(environ: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_sources({}, environ)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_local_control_host(host: str) -> None:
    assert Config(control_host=host).control_is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.1", "::", "node-7"])
def test_reachable_control_host(host: str) -> None:
    assert not Config(control_host=host).control_is_local


def test_every_setting_is_described() -> None:
    rows = describe()
    assert [row.key for row in rows] == list(FIELDS) == list(Config.__struct_fields__)
    assert all(row.meaning.endswith(".") and row.env == f"PDKV_{row.key.upper()}" for row in rows)
    assert len(markdown_table().splitlines()) == len(rows) + 2


def test_every_default_passes_its_own_bounds() -> None:
    for field in FIELDS.values():
        assert msgspec.convert(field.default, field.type) == field.default


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "*"])
def test_a_wildcard_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match=r"control_host=.* is announced .* set the address"):
        Config.from_sources({"control_host": host}, {})
