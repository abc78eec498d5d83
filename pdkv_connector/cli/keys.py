"""`pdkv keys`: make, show and change the keys of the control channel."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from pdkv_connector.transport.control_keys import STANDBY, create_key, drop_standby, load_keys, swap_keys

COPY = "Copy the folder to every machine (files with mode 600) and restart the engines one after the other"


def create(folder: Path, console: Console) -> bool:
    """Add a key and say what comes next."""
    path = create_key(folder)
    show(folder, console)
    if path.name == STANDBY:
        console.print(f"{COPY}; then: pdkv keys swap {folder}", soft_wrap=True)
    else:
        console.print(f"{COPY}, each with PDKV_KEYS_DIR or keys_dir set to where it lies there.", soft_wrap=True)
    return True


def show(folder: Path, console: Console) -> bool:
    """Load the keys as an engine would and print their fingerprints."""
    for use, pair in zip(("active", "standby"), load_keys(str(folder)), strict=False):
        console.print(f"{use:8}{pair.fingerprint}", soft_wrap=True)
    return True


def swap(folder: Path, console: Console) -> bool:
    """Exchange the two keys and say what comes next."""
    swap_keys(folder)
    show(folder, console)
    console.print(f"{COPY}; then: pdkv keys drop {folder}", soft_wrap=True)
    return True


def drop(folder: Path, console: Console) -> bool:
    """Remove the standby key."""
    drop_standby(folder)
    show(folder, console)
    console.print(f"{COPY}: the dropped key opens nothing any more.", soft_wrap=True)
    return True
