"""How much a session remembers: bounded by what is under way, and by rings; nothing grows with what is over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tests.simulator.process import Process
from tests.simulator.violation import require

if TYPE_CHECKING:
    from tests.simulator.world import World

IDLE = 40
PER_PEER = 70
PER_TOMBSTONE = 2
PER_LEG = 40
PER_TOKEN_LAYER = 4
"""A span set of tokens has at most a range for every second token; a leg has four of them for each layer."""
_ATOMS = (int, float, str, bytes, bool, type(None))


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset) or type(value).__name__ in ("deque", "SpanSet"):
        return list(value)
    if not type(value).__module__.startswith("pdkv_connector.session"):
        return ()
    if getattr(type(value), "__struct_fields__", None):
        return ()  # a message as it came: bounded by its decoder
    slots = [name for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return [*vars(value).values()] if hasattr(value, "__dict__") else [getattr(value, name) for name in slots]


def num_kept(session: Any) -> int:
    """Entries of all containers that hang on a session."""
    seen: set[int] = set()
    total, stack = 0, [session]
    while stack:
        value = stack.pop()
        if isinstance(value, _ATOMS) or callable(value) or id(value) in seen:
            continue
        seen.add(id(value))
        children = _children(value)
        if isinstance(value, dict | list | set) or type(value).__name__ in ("deque", "SpanSet"):
            total += len(list(children))
        stack.extend(children)
    return total


def check_footprint(rank: Process, world: World) -> None:
    """A session with nothing under way keeps its rings, its peers and its tombstones."""
    scenario, book = world.scenario, rank.session.book
    num_peers = world.num_peers(rank)
    require(len(book.peers) <= num_peers, "memory", f"{rank.name} knows {list(book.peers)}, there are {num_peers}")
    legs = sum(len(transfer.legs) + 1 for transfer in book.transfers.values())
    tokens = max((plan.num_tokens for plan in scenario.requests), default=0) * len(scenario.windows)
    bound = (
        IDLE
        + 4 * max(scenario.num_ring_slots, scenario.num_send_slots)
        + PER_PEER * num_peers
        + PER_TOMBSTONE * len(scenario.requests)
        + legs * (PER_LEG + 6 * scenario.num_ring_slots + PER_TOKEN_LAYER * tokens)
    )
    kept = num_kept(rank.session)
    require(kept <= bound, "memory", f"{rank.name} keeps {kept} entries, {bound} for {legs} legs and less")
