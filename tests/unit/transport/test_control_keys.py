"""Key files: made right, read strictly, changed one step at a time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq.auth

from pdkv_connector.errors import ConfigError
from pdkv_connector.transport.control_keys import (
    ACTIVE,
    STANDBY,
    create_key,
    drop_standby,
    load_keys,
    swap_keys,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one key."""
    made = tmp_path / "keys"
    assert create_key(made) == made / ACTIVE
    return made


def test_no_name_is_no_keys() -> None:
    assert load_keys("") == ()


def test_a_created_key_is_private_and_loads(folder: Path) -> None:
    assert stat.S_IMODE((folder / ACTIVE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (pair,) = load_keys(str(folder))
    assert pair.secret.decode() in (folder / ACTIVE).read_text()
    assert pair.secret.decode() not in repr(pair)


def test_the_file_is_one_of_zmq_auth(folder: Path) -> None:
    (pair,) = load_keys(str(folder))
    assert zmq.auth.load_certificate(folder / ACTIVE) == (pair.public, pair.secret)


def test_keys_are_changed_in_three_steps(folder: Path) -> None:
    (old,) = load_keys(str(folder))
    create_key(folder)
    first, new = load_keys(str(folder))
    assert first == old != new
    swap_keys(folder)
    assert load_keys(str(folder)) == (new, old)
    drop_standby(folder)
    assert load_keys(str(folder)) == (new,)
    assert sorted(os.listdir(folder)) == [ACTIVE]


def test_each_step_wants_the_one_before(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pdkv keys create"):
        swap_keys(folder)
    with pytest.raises(ConfigError, match="cannot be removed: No such file"):
        drop_standby(folder)
    create_key(folder)
    with pytest.raises(ConfigError, match="is there already: `pdkv keys drop"):
        create_key(folder)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o660, 0o602])
def test_a_secret_that_others_can_get_at_is_refused(folder: Path, mode: int) -> None:
    (folder / ACTIVE).chmod(mode)
    with pytest.raises(ConfigError, match=rf"active.key_secret has mode {mode:04o}.*`chmod 600 {folder}"):
        load_keys(str(folder))
    (folder / ACTIVE).chmod(0o600)
    assert load_keys(str(folder))


def test_the_standby_is_as_private(folder: Path) -> None:
    create_key(folder).chmod(0o644)
    with pytest.raises(ConfigError, match=STANDBY):
        load_keys(str(folder))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_root_may_be_lent_to_a_group_and_one_of_another_user_is_refused(folder: Path) -> None:
    (folder / ACTIVE).chmod(0o440)
    assert load_keys(str(folder)), "as a secret mounted into a container is"
    os.chown(folder / ACTIVE, 4711, -1)
    with pytest.raises(ConfigError, match=rf"belongs to uid 4711.*`chown 0 {folder}"):
        load_keys(str(folder))


def test_a_link_to_a_private_file_is_followed(folder: Path, tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ACTIVE).symlink_to(folder / ACTIVE)
    assert load_keys(str(linked)) == load_keys(str(folder))


def swapped_letter(text: str) -> str:
    """Another key: one letter of the secret differs, the public key is the old one."""
    at = text.index('"', text.index("secret-key")) + 1
    return text[:at] + ("b" if text[at] == "a" else "a") + text[at + 1 :]


DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "cut": lambda text: text[: len(text) - 10],
    "not Z85": lambda text: text.replace('"', '"\\', 1)[:-1],
    "another secret": swapped_letter,
    "public only": lambda text: text[: text.index("secret-key")],
    "binary": lambda _: "\x00\x80\xff" * 100,
    "large": lambda text: "#" * (1 << 20) + "\n" + text,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named(folder: Path, damage: Callable[[str], str]) -> None:
    path = folder / ACTIVE
    path.write_text(damage(path.read_text()), encoding="latin-1")
    with pytest.raises(ConfigError, match=r"active\.key_secret is damaged or no key file: copy it anew"):
        load_keys(str(folder))


def test_a_missing_folder_or_key_names_the_command(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys_dir='.*gone' is no folder.*`pdkv keys create .*gone`"):
        load_keys(str(tmp_path / "gone"))
    create_key(folder)
    (folder / ACTIVE).unlink()
    with pytest.raises(ConfigError, match=r"has no active\.key_secret"):
        load_keys(str(folder))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/keys cannot hold keys \(Not a directory\)"):
        create_key(tmp_path / "file" / "keys")
