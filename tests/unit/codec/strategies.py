"""Random slabs: a geometry, a layout, a range of tokens and a shuffled block table."""

from __future__ import annotations

from hypothesis import strategies as st

from benchmarks.shapes import AMX_TILE, LAYOUTS, Shape, make_memory, mla
from pdkv_connector.codec.base import KVMemory, SlabPart
from pdkv_connector.types import Span

DTYPES = ("bfloat16", "float16", "float32", "float8_e4m3fn")


@st.composite
def shapes(draw: st.DrawFn, layout: str) -> Shape:
    """A geometry that `layout` allows: AMX packs in tiles, the others take any size."""
    tile = AMX_TILE if layout == "cpu_amx" else 1
    return Shape(
        num_blocks=draw(st.integers(1, 6)),
        block_size=tile * draw(st.integers(1, 3 if tile > 1 else 40)),
        num_heads=1 if layout == "mla" else draw(st.integers(1, 4)),
        head_dim=tile * draw(st.integers(1, 3 if tile > 1 else 96)),
        dtype="bfloat16" if layout == "cpu_amx" else draw(st.sampled_from(DTYPES)),
    )


@st.composite
def slabs(draw: st.DrawFn, layout: str, seed: int | None = 7) -> tuple[KVMemory, SlabPart]:
    """Memory of one or two layers, and a part of it: some heads, tokens that may start and end inside a block."""
    shape = draw(shapes(layout))
    build = mla if layout == "mla" else LAYOUTS[layout]
    num_layers = draw(st.integers(1, 2))
    memory = make_memory(tuple(build(shape, f"layer.{i}") for i in range(num_layers)), seed)
    return memory, draw(parts(shape, num_layers))


@st.composite
def parts(draw: st.DrawFn, shape: Shape, num_layers: int) -> SlabPart:
    """Heads, tokens and one shuffled table per layer."""
    num_tokens = shape.num_blocks * shape.block_size
    start = draw(st.integers(0, num_tokens))
    first_head = draw(st.integers(0, shape.num_heads - 1))
    tables = tuple(tuple(draw(st.permutations(range(shape.num_blocks)))) for _ in range(num_layers))
    return SlabPart(
        layers=tuple(range(num_layers)),
        block_tables=tables,
        tokens=Span(start, draw(st.integers(start, num_tokens))),
        heads=Span(first_head, draw(st.integers(first_head + 1, shape.num_heads))),
    )
