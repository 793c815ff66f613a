"""At which footprints instances are held (holding.py), from which states: the last part of a search.

Levels lie closer together where memory is short; then always where a little more memory would save most.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from planner.solve.memory.footprints import Footprints, Found
from planner.solve.memory.holding import Holding, decided
from planner.solve.memory.shrinking import down_and_up
from planner.solve.memory.states import State, exactly
from planner.solve.memory.steps import Material

STARTS = 3
"""States from which instances are held at each level."""

FAR = 4.0
"""What takes so many times as long as the best that is known at a level is no start there, ..."""

LONG = 20_000
"""... nor are so many steps for holding instances in them, which then takes minutes, where they are more than ..."""

LONGEST = 6
"""... so many times the graph's nodes."""

HOLDS = 30
"""Levels up to which instances are held."""

SHORT = 1.42
"""Times the smallest footprint up to which memory is so short that there is more to be found than what is held."""

SHORTS = 16
"""Levels up to there."""

NEAR = 0.002
"""Levels closer to each other than this share of the smallest are one."""

HELD = 18_000
"""Nodes times levels: fewer levels for large graphs."""


def held(known: Sequence[State], reach: float, exact: Footprints, made: Material) -> list[State]:
    """The best that holding instances makes of some states, at levels that lie closer where it gains most, and what
    shrinking and holding in turn make of those where memory is short. `known`: the fastest first. `reach`: times the
    smallest footprint up to which levels are looked at."""
    longest = max(LONG, LONGEST * len(made.order))
    known = [s for s in known if s.found and len(s.found[0]) <= longest]
    low, high = known[-1].peak, known[0].peak
    if low == high:
        return []
    count = max(2, min(HOLDS, HELD // len(made.order)))
    edge, many = min(high, int(SHORT * low)), count >= SHORTS // 2
    # Large graphs have few levels; those with more memory are not to go without.
    # Beyond 2^53 bytes floats are not exact: below the lowest there is no state.
    short = sorted({max(low, int(x)) for x in np.geomspace(low, edge, max(2, SHORTS * count // HOLDS))})
    levels = short + [int(x) for x in np.geomspace(edge, high, count // 6 + 2)[1:-1]]
    if reach < math.inf:
        levels = short = [level for level in short if level <= reach * low]
        count = len(levels)
    holding = Holding(exact, made)
    listed = [s.found for s in known if s.found]
    found: dict[int, Found] = {}
    while len(found) < count:
        if not levels:  # where a little more memory would save most
            edges = sorted(found)
            gains = [
                ((found[a][1].extra_ns - found[b][1].extra_ns) * (b - a), -a, (a + b) // 2)
                for a, b in pairwise(edges)
                if b - a > NEAR * low and a >= short[-1]
            ]
            if not gains:
                break
            levels = [max(gains)[-1]]
        level = levels.pop(0)
        below = [i for i, s in enumerate(known) if s.peak <= level]
        starts = [found[x] for x in sorted(found) if x <= level][-1:]
        starts += [listed[below[i]] for i in sorted({len(below) * i // 6 for i in range(STARTS)})]
        far = FAR * min(f.extra_ns for _, f in starts)
        starts = [start for start in starts if start[1].extra_ns <= far]
        found[level] = min((holding.hold(start, level) for start in starts), key=lambda t: t[1].extra_ns)
    every = [f for f, _ in found.values()]
    if many:  # large graphs have too few levels to go from one to the next
        listed = [*found.values(), *listed]
        given = {level: min((f for f in listed if f[1].peak <= level), key=lambda f: f[1].extra_ns) for level in short}
        every += down_and_up(given, holding, exact, made)
    return [exactly(State(*decided(f, exact, made)), exact, made) for f in every]
