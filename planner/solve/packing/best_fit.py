"""Best fit: blocks in a fixed order, each into the smallest gap that holds it among those that it meets."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from planner.solve.packing.sections import Instance

Key = Callable[[Instance, int], tuple[int, ...]]

ORDERS: dict[str, Key] = {
    "largest": lambda p, b: (-p.size[b], p.lower[b], b),
    "area": lambda p, b: (-p.size[b] * (p.upper[b] - p.lower[b]), p.lower[b], b),
    "oldest": lambda p, b: (p.lower[b], p.lower[b] - p.upper[b], b),
}


def best_fit(problem: Instance, order: str) -> list[int]:
    """Offsets; `order` is one of ORDERS. Costs a pass over all placed blocks per block."""
    key = ORDERS[order]
    return fit_between(problem, {}, sorted(range(problem.blocks), key=lambda b: key(problem, b)))


def fit_between(problem: Instance, fixed: Mapping[int, int], order: Sequence[int]) -> list[int]:
    """Offsets of all blocks: `fixed` (block -> offset), and those in `order`, each in the smallest gap that is left."""
    count = problem.blocks
    lower, upper = np.empty(count, np.int64), np.empty(count, np.int64)
    offset, top = np.empty(count, np.int64), np.empty(count, np.int64)
    found = [0] * count
    for index, (block, at) in enumerate(fixed.items()):
        lower[index], upper[index] = problem.lower[block], problem.upper[block]
        offset[index], top[index] = at, at + problem.size[block]
        found[block] = at
    for index, block in enumerate(order, len(fixed)):
        first, last, size = problem.lower[block], problem.upper[block], problem.size[block]
        alive = np.flatnonzero((lower[:index] < last) & (first < upper[:index]))
        alive = alive[np.argsort(offset[alive], kind="stable")]
        # Gap i lies between the highest top among the blocks before i and the offset of block i.
        floors = np.concatenate(([0], np.maximum.accumulate(top[alive])))
        room = offset[alive] - floors[:-1]
        fitting = np.flatnonzero(room >= size)
        place = int(floors[-1]) if not len(fitting) else int(floors[fitting[np.argmin(room[fitting])]])
        lower[index], upper[index], offset[index], top[index] = first, last, place, place + size
        found[block] = place
    return found
