"""Blocks as packing sees them: sizes in whole units, lifetimes in sections.

Only who meets whom matters for packing, not when. A *section* is a moment at which some block is about to end; blocks
that are alive together at any moment are alive together in one of these (the cliques of the interval graph). A block
covers the sections `lower` up to, not including, `upper`. The unit is the greatest common divisor of all sizes, so
that exact search counts in small steps.

    a [0, 2)  b [1, 3)  c [2, 4)        sections: 1 (a ends at 2), 2 (b ends at 3), 3 (c ends at 4)
    a -> [0, 1)  b -> [0, 2)  c -> [1, 3)
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from planner.solve.liveness import Block
from planner.units import Bytes, align

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Instance:
    """One packing problem; a block is its index. Offsets and heights are in units too."""

    ids: tuple[str, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    size: tuple[int, ...]
    count: int
    """Sections."""
    unit: Bytes
    load: int
    """Most units alive in any section: no packing is lower."""

    @property
    def blocks(self) -> int:
        return len(self.ids)


def instance(blocks: Sequence[Block], alignment: int) -> Instance:
    """In an order of its own, so that the caller's order does not matter."""
    rows = sorted(blocks, key=lambda b: (b.lower, -b.upper, -b.size, b.id))
    sizes = [align(b.size, alignment) for b in rows]
    unit = gcd(alignment, *sizes) if not any(sizes) else gcd(*sizes)
    starts = sorted({b.lower for b in rows})
    lower = [bisect_left(starts, b.lower) for b in rows]
    last = [bisect_left(starts, b.upper) - 1 for b in rows]
    # A section counts only if some block ends with it; else all of its blocks meet in the next one too.
    ends = sorted(set(last))
    lower = [bisect_left(ends, section) for section in lower]
    upper = [bisect_left(ends, section) + 1 for section in last]
    size = [s // unit for s in sizes]
    found = Instance(tuple(b.id for b in rows), tuple(lower), tuple(upper), tuple(size), len(ends), Bytes(unit), 0)
    return Instance(**{**vars(found), "load": int(loads(found).max(initial=0))})


def loads(problem: Instance) -> Ints:
    """Units alive in each section."""
    change = np.zeros(problem.count + 1, np.int64)
    np.add.at(change, list(problem.lower), problem.size)
    np.subtract.at(change, list(problem.upper), problem.size)
    return np.cumsum(change)[: problem.count]


def height(problem: Instance, offsets: Sequence[int]) -> int:
    return max((at + size for at, size in zip(offsets, problem.size, strict=True)), default=0)


def by_moment(moments: Sequence[int], sections: int) -> list[list[int]]:
    """For every moment from 0 to `sections`: the blocks whose moment it is, in their order."""
    found: list[list[int]] = [[] for _ in range(sections + 1)]
    for block, moment in enumerate(moments):
        found[moment].append(block)
    return found
