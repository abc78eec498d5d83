"""Key files of the control channel: who holds the cluster's key belongs to it, on either end of a connection.

A folder holds `active.key_secret` and, while keys are being changed, `standby.key_secret`; it is the same on every
machine. A process proves itself with the active key, accepts both, and dials with the standby key a listener that does
not have its active one. The files have the format of `zmq.auth`: a public and a secret CURVE key in Z85.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

import zmq

from pdkv_connector.errors import ConfigError

ACTIVE = "active.key_secret"
STANDBY = "standby.key_secret"
MAX_FILE_BYTES = 4096

_LINE = re.compile(r'^\s*(public|secret)-key\s*=\s*"([!-~]{40})"\s*$', re.MULTILINE)
_TEXT = """#   Key of a pdkv-connector cluster. Whoever can read this file can send and receive its KV.
metadata
curve
    public-key = "{public}"
    secret-key = "{secret}"
"""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CURVE key pair, each key 40 characters of Z85."""

    public: bytes
    secret: bytes = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that tell keys apart and give nothing away."""
        return hashlib.sha256(self.public).hexdigest()[:16]


Keys = tuple[KeyPair, ...]
"""The active pair, then the standby if there is one; empty where no keys are used."""


def load_keys(keys_dir: str) -> Keys:
    """The keys in a folder; none for an empty name. Raises ConfigError naming the file and the fix."""
    if not keys_dir:
        return ()
    _needs_curve()
    folder = Path(keys_dir).expanduser()
    if not os.path.exists(folder / ACTIVE):  # False, too, where this user may not look
        what = f"has no {ACTIVE}" if folder.is_dir() else "is no folder that can be read"
        raise ConfigError(
            f"keys_dir={keys_dir!r} {what}: make one with `pdkv keys create {keys_dir}` and copy it to every machine"
        )
    return tuple(_read(folder / name) for name in (ACTIVE, STANDBY) if os.path.exists(folder / name))


def create_key(folder: Path) -> Path:
    """Write a new key: the active one, or the standby when there is an active one. Raises ConfigError."""
    _needs_curve()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / (STANDBY if (folder / ACTIVE).exists() else ACTIVE)
        public, secret = zmq.curve_keypair()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(_TEXT.format(public=public.decode(), secret=secret.decode()))
    except FileExistsError as error:
        raise ConfigError(f"{error.filename} is there already: `pdkv keys drop {folder}` removes it") from None
    except OSError as error:
        raise ConfigError(f"{folder} cannot hold keys ({error.strerror}): choose a folder you can write to") from None
    return path


def swap_keys(folder: Path) -> None:
    """Make the standby key the active one and the active the standby. Raises ConfigError when there are not both."""
    active, standby, spare = folder / ACTIVE, folder / STANDBY, folder / "swapping.key_secret"
    if not (active.exists() and standby.exists()):
        raise ConfigError(f"{folder} does not hold two keys: `pdkv keys create {folder}` adds the one to change to")
    os.rename(active, spare)
    os.rename(standby, active)
    os.rename(spare, standby)


def drop_standby(folder: Path) -> None:
    """Remove the standby key. Raises ConfigError when there is none."""
    try:
        (folder / STANDBY).unlink()
    except OSError as error:
        raise ConfigError(f"{folder / STANDBY} cannot be removed: {error.strerror}") from None


def _needs_curve() -> None:
    if not zmq.has("curve"):
        raise ConfigError("keys need a ZMQ library with CURVE, this one has none: install the wheel of pyzmq")


def _read(path: Path) -> KeyPair:
    try:
        with path.open("rb") as file:
            _check_access(path, os.fstat(file.fileno()))
            text = file.read(MAX_FILE_BYTES).decode("ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give it to the engine's user") from None
    keys = {kind: key.encode() for kind, key in _LINE.findall(text)}
    if keys.keys() != {"public", "secret"} or not _belong_together(keys["public"], keys["secret"]):
        raise ConfigError(f"{path} is damaged or no key file: copy it anew from another machine")
    return KeyPair(keys["public"], keys["secret"])


def _check_access(path: Path, found: os.stat_result) -> None:
    """As strict as PostgreSQL: one's own key is for oneself alone, one of root's may be lent to a group."""
    owner, mode, me = found.st_uid, stat.S_IMODE(found.st_mode), os.geteuid()
    if owner not in (me, 0):
        raise ConfigError(f"{path} belongs to uid {owner}, who could change it: run `chown {me} {path}`")
    if mode & (0o037 if owner == 0 else 0o077):
        raise ConfigError(f"{path} has mode {mode:04o}, so others can get at the secret: run `chmod 600 {path}`")


def _belong_together(public: bytes, secret: bytes) -> bool:
    try:
        return zmq.curve_public(secret) == public
    except zmq.ZMQError:
        return False
