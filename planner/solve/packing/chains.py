"""Filling valleys with chains: several blocks at once, one behind the other, so that they cover a floor best.

As valleys.py, but where that one looks for one block, here the lowest valley gets the chain of blocks that is worth
most: a block counts for the sections that it covers, those that will end highest by far the most, and a little for its
size. What no chain covers stays a valley until its walls are level with it. Better than single blocks where lifetimes
are short or mixed and blocks are many.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.solve.packing.sections import Instance, Ints
from planner.solve.packing.valleys import Skyline

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Taste(NamedTuple):
    tall: float
    """Power of its size by which a block counts more."""
    urgent: float
    """A section counts e times as much when it will end higher by the load / `urgent`."""


TASTES = (Taste(0.25, 30), Taste(0.1, 30), Taste(0.1, 80), Taste(0.4, 20), Taste(0.5, 10), Taste(0.25, 50))
STEPS_PER_VALLEY = 300
STEPS_PER_BLOCK = 3


def fill_chains(problem: Instance, taste: Taste) -> tuple[list[int], int]:
    """Offsets, and the work in steps as in exact.py."""
    skyline = Skyline(problem)
    tall = skyline.size.astype(float) ** taste.tall
    offsets = [0] * problem.blocks
    left_over, work = problem.blocks, 0
    while left_over:
        left, right, floor = skyline.lowest()
        fitting = skyline.fitting(left, right)
        work += STEPS_PER_VALLEY + STEPS_PER_BLOCK * len(fitting)
        if not len(fitting):
            skyline.add((left, right, skyline.wall(left, right)))
            continue
        end = left
        for block in _best_chain(skyline, fitting, left, right, taste, tall):
            offsets[block] = floor
            left_over -= 1
            first, last, size = skyline.place(block)
            skyline.add((end, first, floor), (first, last, floor + size))
            end = last
        skyline.add((end, right, floor))
    return offsets, work


def _best_chain(skyline: Skyline, fitting: Ints, left: int, right: int, taste: Taste, tall: Floats) -> Sequence[int]:
    """Blocks that do not meet, worth most together, from left to right (weighted interval scheduling). `fitting`: in
    the order of their ends. `tall`: what every block of the problem counts for its size."""
    if len(fitting) == 1:
        return [int(fitting[0])]
    lower, upper = skyline.lower[fitting], skyline.upper[fitting]
    # All sections of a valley have one floor, so what is left to place tells which will end highest.
    to_come = skyline.left_to_place[left:right].astype(float)
    weight = np.exp(np.maximum((to_come - to_come.max()) * taste.urgent / skyline.problem.load, -20.0))
    upto = np.concatenate(([0.0], np.cumsum(weight)))
    worth = (upto[upper - left] - upto[lower - left]) * tall[fitting]
    before = upper.searchsorted(lower, side="right").tolist()
    best, most = [0.0], 0.0
    taken: list[int] = []
    for value, earlier in zip(worth.tolist(), before, strict=True):
        value += best[earlier]
        if value > most:
            most = value
            taken.append(len(best))
        best.append(most)
    chain = []
    at = len(best)
    while taken:
        last = taken.pop()
        if last <= at:
            chain.append(int(fitting[last - 1]))
            at = before[last - 1]
    return chain[::-1]
