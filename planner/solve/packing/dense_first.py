"""Packing the dense sections first, exactly and without what surrounds them, then outwards.

Where some sections are full and others have room, search below a height gets lost in the choices that the others leave.
A window of the densest sections is a problem of its own, with few solutions that are soon found. What surrounds it
follows window by window, by guided ejection (ejection.py) from what the last window came to: blocks that have a place
already may still move. Where that fails, exact search packs the wider window from nothing.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.solve.liveness import Block
from planner.solve.packing.ejection import POWERS, repaired
from planner.solve.packing.exact import Verdict, pack_below
from planner.solve.packing.sections import Instance, instance, loads
from planner.units import Bytes

CORE = 0.4
"""Share of all blocks that meet the first window."""
STEP = 0.05
"""Further blocks, as a share of all, that meet the next window."""
PART = 20
"""Each search may take so small a part of all work."""

Window = tuple[int, int]
"""First section, and the one behind the last."""


def dense_first(
    problem: Instance, goal: int, preferences: Sequence[Sequence[int]], work_limit: int
) -> tuple[list[int] | None, int]:
    """Offsets below `goal`, or None when the work, in steps as in exact.py, is used up; and the work.

    `preferences`: ranks of blocks, as for exact search.
    """
    outwards = _Outwards(goal, work_limit)
    windows = [_between(problem, *w) for w in _windows(problem)]
    for preference in preferences:
        known = outwards.exact(windows[0], preference)
        everything = outwards.around(windows[-1], known)
        for window in windows[1:]:
            if known is None or everything is not None:
                break
            known = outwards.around(window, known) or outwards.exact(window, preference)
            everything = known if window is windows[-1] else None
        if everything is not None:
            return [everything[b] for b in range(problem.blocks)], outwards.work
    return None, outwards.work


class _Outwards:
    def __init__(self, goal: int, work_limit: int) -> None:
        self.goal, self.work_limit = goal, work_limit
        self.work = 0

    def exact(self, window: Instance, preference: Sequence[int]) -> dict[int, int] | None:
        """Offsets of the blocks that meet the window."""
        ranks = [preference[int(i)] for i in window.ids]
        found = pack_below(window, self.goal // window.unit, ranks, self._share())
        self.work += found.work
        return _named(window, found.offsets) if found.verdict is Verdict.FOUND else None

    def around(self, window: Instance, known: Mapping[int, int] | None) -> dict[int, int] | None:
        """Offsets of the blocks that meet the window, from those of some of them."""
        if known is None:
            return None
        goal = self.goal // window.unit
        start = [known[int(i)] // window.unit if int(i) in known else goal for i in window.ids]
        for power in POWERS:
            found, work = repaired(window, start, goal, power, self._share())
            self.work += work
            if found is not None:
                return _named(window, found)
        return None

    def _share(self) -> int:
        return max(0, min(self.work_limit // PART, self.work_limit - self.work))


def _named(inside: Instance, offsets: Sequence[int]) -> dict[int, int]:
    return {int(i): offset * inside.unit for i, offset in zip(inside.ids, offsets, strict=True)}


def _windows(problem: Instance) -> list[Window]:
    """From the densest section to where more is alive, up to all."""
    load = loads(problem)
    lower, upper = np.array(problem.lower), np.array(problem.upper)
    first = int(load.argmax())
    last = first + 1
    found: list[Window] = []
    share = CORE
    while first > 0 or last < problem.count:
        meeting = np.count_nonzero((lower < last) & (upper > first))
        if meeting >= share * problem.blocks:
            found.append((first, last))
            share = meeting / problem.blocks + STEP
        if last == problem.count or (first > 0 and load[first - 1] >= load[last]):
            first -= 1
        else:
            last += 1
    return [*found, (0, problem.count)]


def _between(problem: Instance, first: int, last: int) -> Instance:
    """The blocks, by number, as far as they live in a window."""
    rows = enumerate(zip(problem.lower, problem.upper, problem.size, strict=True))
    inside = [(b, max(first, lower), min(last, upper), size) for b, (lower, upper, size) in rows]
    return instance([Block(str(b), lo, hi, Bytes(size)) for b, lo, hi, size in inside if lo < hi], 1)
