"""How many bytes a slab takes in wire order, and whether its part can be read or written at all."""

from __future__ import annotations

from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.errors import LayoutError
from pdkv_connector.layout.copy_plan import check_table
from pdkv_connector.layout.region import Region


def layer_bytes(region: Region, part: SlabPart) -> int:
    """Raw bytes of `part` in one layer, all planes."""
    return region.bytes_per_token_head * len(part.heads) * len(part.tokens)


def slab_bytes(memory: KVMemory, part: SlabPart) -> int:
    """Raw bytes of the slab; `block_tables` are not looked at. Raises LayoutError for a layer that is not there."""
    for layer in part.layers:
        if not 0 <= layer < len(memory.regions):
            raise LayoutError(f"layer index {layer} is outside the {len(memory.regions)} layers held here")
    return sum(layer_bytes(memory.regions[layer], part) for layer in part.layers)


def check_part(memory: KVMemory, part: SlabPart) -> None:
    """Raise LayoutError, naming the value, unless every layer has the heads, and blocks for the tokens, of `part`."""
    if len(part.block_tables) != len(part.layers):
        raise LayoutError(f"{len(part.block_tables)} block tables were given for {len(part.layers)} layers")
    checked: set[tuple[int, int, int]] = set()
    for layer, table in zip(part.layers, part.block_tables, strict=True):
        region = memory.regions[layer]
        if part.heads.start < 0 or part.heads.stop > region.num_heads:
            raise LayoutError(
                f"layer {region.name}: heads [{part.heads.start}, {part.heads.stop}) are outside its {region.num_heads}"
            )
        key = (id(table), region.block_size, region.num_blocks)
        if key not in checked:
            check_table(region, table, part.tokens)
            checked.add(key)
