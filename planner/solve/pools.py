"""Byte offsets in several pools: each pool's blocks are packed on their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.solve.liveness import Block
from planner.solve.offsets import QUICK, Effort, Packing, pack
from planner.units import ALIGNMENT, Bytes, align


@dataclass(frozen=True)
class Arenas:
    """One packing per pool, the first pool's first."""

    packing: Mapping[str, Packing]
    elsewhere: Mapping[str, str]
    """block -> its pool, where that is not the first"""

    def pool_of(self, block: str) -> str:
        return self.elsewhere.get(block, next(iter(self.packing)))

    @cached_property
    def offsets(self) -> dict[str, Bytes]:
        """Within each block's own pool."""
        return {block: at for packing in self.packing.values() for block, at in packing.offsets.items()}

    @cached_property
    def addresses(self) -> dict[str, int]:
        """On one line, pool behind pool: blocks of different pools never overlap (for the sync pass)."""
        found: dict[str, int] = {}
        base = 0
        for packing in self.packing.values():
            found.update((block, base + at) for block, at in packing.offsets.items())
            base += align(packing.height, ALIGNMENT)
        return found


def unshared(blocks: Sequence[Block]) -> Arenas:
    """Every block on bytes of its own, in one pool."""
    offsets: dict[str, Bytes] = {}
    height = Bytes(0)
    for block in blocks:
        offsets[block.id] = height
        height = Bytes(height + align(block.size, ALIGNMENT))
    return Arenas({"": Packing(offsets, height, height, height)}, {})


def arenas(
    blocks: Sequence[Block],
    pools: Mapping[str, str],
    first: str,
    *,
    capacity: int | None = None,
    effort: Effort = QUICK,
) -> Arenas:
    """`pools`: value -> pool, of those outside `first`. `capacity`: bytes of that one below which nothing is gained."""
    groups: dict[str, list[Block]] = {first: []}
    for block in blocks:
        groups.setdefault(pools.get(block.id, first), []).append(block)
    packing = {
        name: pack(group, capacity=capacity if name == first else None, effort=effort) for name, group in groups.items()
    }
    return Arenas(packing, pools)
