"""Where the elements of one layer's KV lie in an engine's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AxisMap:
    """Maps an index to an element offset: `(i // factor) * outer_stride + (i % factor) * inner_stride`.

    A plain strided axis has `factor` 1 and `inner_stride` 0. Two levels are enough for every layout seen: token- and
    head-major GPU blocks, MLA latents, and the CPU blocks that vLLM packs for its vector and matrix units.
    """

    factor: int
    outer_stride: int
    inner_stride: int

    def offset(self, index: int) -> int:
        """Element offset of `index` along this axis."""
        return (index // self.factor) * self.outer_stride + (index % self.factor) * self.inner_stride


@dataclass(frozen=True, slots=True)
class PlaneMap:
    """One plane (K, V, or the single MLA latent) inside one block and head; `base` and strides are in elements."""

    base: int
    token: AxisMap
    dim: AxisMap


@dataclass(frozen=True, slots=True)
class Region:
    """One layer's paged KV: element (block, plane, head, token, dim) lies at

    `block * block_stride + head * head_stride + planes[plane].base + token map + dim map`, counted in elements.
    """

    name: str
    num_blocks: int
    block_size: int
    num_heads: int
    head_dim: int
    dtype: str
    elem_bytes: int
    block_stride: int
    head_stride: int
    planes: tuple[PlaneMap, ...]

    @property
    def bytes_per_token_head(self) -> int:
        """Bytes of one token of one head, all planes."""
        return len(self.planes) * self.head_dim * self.elem_bytes
