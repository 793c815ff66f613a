"""Pass *offsets*: byte offsets for blocks with lifetimes, so that blocks alive together never overlap.

Blocks that live all the time go to the bottom. The rest is packed by best fit in several orders (largest first,
largest area first, oldest first) and the lowest result is kept. The lower bound is the most bytes alive at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.solve.liveness import Block
from planner.units import ALIGNMENT, Bytes, align


class Packing(NamedTuple):
    offsets: dict[str, Bytes]
    height: Bytes
    lower_bound: Bytes
    """Most aligned bytes alive at any time: no packing can be lower."""


def pack(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> Packing:
    """Offsets for every block, each a multiple of `alignment`. Deterministic: ties are broken by id."""
    if not blocks:
        return Packing({}, Bytes(0), Bytes(0))
    start, end = min(b.lower for b in blocks), max(b.upper for b in blocks)
    offsets: dict[str, Bytes] = {}
    base = 0
    for block in sorted(blocks, key=lambda b: b.id):
        if (block.lower, block.upper) == (start, end):
            offsets[block.id] = Bytes(base)
            base += align(block.size, alignment)
    rest = [b for b in blocks if b.id not in offsets]
    keys = (
        lambda b: (-b.size, b.lower, b.id),
        lambda b: (-b.size * (b.upper - b.lower), b.lower, b.id),
        lambda b: (b.lower, -(b.upper - b.lower), b.id),
    )
    # Beyond some thousand blocks one order must do: best fit costs a pass over all placed blocks per block.
    tried = [_best_fit(sorted(rest, key=key), alignment) for key in (keys if len(rest) <= 6000 else keys[:1])]
    best = min(tried, key=lambda result: result[1])
    offsets.update({name: Bytes(base + offset) for name, offset in best[0].items()})
    return Packing(offsets, Bytes(base + best[1]), Bytes(base + most_alive(rest, alignment)))


def _best_fit(order: Sequence[Block], alignment: int) -> tuple[dict[str, int], int]:
    """Place blocks one after the other into the smallest gap that fits among those alive with them, else on top."""
    count = len(order)
    lower, upper = np.empty(count, np.int64), np.empty(count, np.int64)
    offset, top = np.empty(count, np.int64), np.empty(count, np.int64)
    height, found = 0, {}
    for index, block in enumerate(order):
        size = align(block.size, alignment)
        alive = np.flatnonzero((lower[:index] < block.upper) & (block.lower < upper[:index]))
        alive = alive[np.argsort(offset[alive], kind="stable")]
        # Gap i lies between the highest top among the blocks before i and the offset of block i.
        floors = np.concatenate(([0], np.maximum.accumulate(top[alive])))
        room = offset[alive] - floors[:-1]
        fitting = np.flatnonzero(room >= size)
        place = int(floors[-1]) if not len(fitting) else int(floors[fitting[np.argmin(room[fitting])]])
        lower[index], upper[index], offset[index], top[index] = block.lower, block.upper, place, place + size
        height = max(height, place + size)
        found[block.id] = place
    return found, height


def most_alive(blocks: Sequence[Block], alignment: int = ALIGNMENT) -> int:
    """The largest sum of aligned sizes alive at one time."""
    events: dict[int, int] = {}
    for block in blocks:
        size = align(block.size, alignment)
        events[block.lower] = events.get(block.lower, 0) + size
        events[block.upper] = events.get(block.upper, 0) - size
    alive = most = 0
    for time in sorted(events):
        alive += events[time]
        most = max(most, alive)
    return most
