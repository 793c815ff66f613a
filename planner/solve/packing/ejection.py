"""Repairing a packing below a lower height: blocks that stick out go back in, at the price of others, which follow.

Guided ejection, after Nagata and Bräysy ("A powerful route minimization heuristic for the vehicle routing problem with
time windows", 2009): a block that fits nowhere takes the place whose blocks are cheapest to throw out, and they go in
next. A block gets dearer every time it did not fit, so that those that are hard to place stay and the easy ones move.
Where hundreds of blocks or more leave some slack, this reaches heights that building from the bottom does not.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

from planner.solve.packing.sections import Instance, Ints, height

POWERS = (1.0, 0.5)
"""A block's first price is its area to this power: large blocks are hard to place."""
PRICE = 64
"""Of a block of average area; whole numbers, so that sums are exact."""
STRIDE = 0.3
"""Of the way to the goal per height that is tried; halved whenever one is not reached."""
STEPS_PER_TRY = 220
STEPS_PER_NEIGHBOUR = 2


def lower_by_ejection(problem: Instance, start: Sequence[int], goal: int, work_limit: int) -> tuple[list[int], int]:
    """A packing no higher than `start`, and no lower than asked for; and the work in steps as in exact.py."""
    best, work, stride, failures = list(start), 0, STRIDE, 0
    while work < work_limit and (top := height(problem, best)) > goal:
        aim = max(goal, min(top - 1, top - round((top - goal) * stride)))
        limit = min(work_limit - work, max(work_limit // 4, STEPS_PER_TRY))
        found, spent = repaired(problem, best, aim, POWERS[failures % len(POWERS)], limit)
        work += spent
        if found is not None:
            best = found
        else:
            failures += 1
            stride /= 2 if failures % len(POWERS) == 0 else 1
    return best, work


def repaired(
    problem: Instance, start: Sequence[int], goal: int, power: float, work_limit: int
) -> tuple[list[int] | None, int]:
    """Offsets below `goal`, or None when the work is used up; and the work."""
    room = _Room(problem, start, goal, power)
    work = 0
    while room.outside and work < work_limit:
        work += STEPS_PER_TRY + STEPS_PER_NEIGHBOUR * room.place_next()
    return (None if room.outside else room.offset.tolist()), work


class _Room:
    """Blocks below `goal`, none in another's way, and those that wait outside, the next one last."""

    def __init__(self, problem: Instance, start: Sequence[int], goal: int, power: float) -> None:
        self.lower, self.upper, self.size = (
            np.array(x, np.int64) for x in (problem.lower, problem.upper, problem.size)
        )
        self.offset: Ints = np.array(start, np.int64)
        """Of a block outside, the goal."""
        self.goal = goal
        self.places: Ints = np.empty(2 * problem.blocks + 2, np.int64)
        """Room for those that are tried."""
        self.begun, self.ended = np.zeros(problem.blocks + 1, np.int64), np.zeros(problem.blocks + 1, np.int64)
        """Room for sums of prices, from 0 on: of blocks by their bottoms, and by their tops."""
        area = (self.upper - self.lower) * self.size.astype(float)
        self.worth = 1 + (PRICE * (area / area.mean()) ** power).astype(np.int64)
        self.price = self.worth.copy()
        self.alive_with: dict[int, Ints] = {}
        """Block -> those that live at the same time, itself among them."""
        self.outside: list[int] = []
        self._throw_out(np.flatnonzero(self.offset + self.size > goal))

    def place_next(self) -> int:
        """Put the next block in where that is cheapest; returns how many blocks it meets."""
        block = self.outside.pop()
        near = self.alive_with.get(block)
        if near is None:
            alive = (self.lower < self.upper[block]) & (self.upper > self.lower[block])
            near = self.alive_with[block] = alive.nonzero()[0]
        bottom = self.offset[near]
        inside = bottom < self.goal
        meets, bottom = near[inside], bottom[inside]
        size, price, count = int(self.size[block]), self.price[meets], len(meets)
        top = bottom + self.size[meets]
        by_bottom, by_top = bottom.argsort(), top.argsort()
        bottoms, tops = bottom[by_bottom], top[by_top]
        np.add.accumulate(price[by_bottom], out=self.begun[1 : count + 1])
        np.add.accumulate(price[by_top], out=self.ended[1 : count + 1])
        highest = self.goal - size
        lowest, last = bisect_left(bottoms, size), bisect_right(tops, highest)
        places = self.places[: 2 + last + count - lowest]
        places[0], places[1], places[2 : 2 + last] = 0, highest, tops[:last]
        np.subtract(bottoms[lowest:], size, out=places[2 + last :])
        # In the way are those that begin below the block's top, but for those that end by its bottom.
        above, below = bottoms.searchsorted(places + size), tops.searchsorted(places, side="right")
        cost = self.begun[above] - self.ended[below]
        cheapest = cost.argmin()
        at = int(places[cheapest])
        if cost[cheapest] == 0:
            gap = np.append(bottoms, self.goal)[above] - np.concatenate(([0], tops))[below]
            free = (cost == 0).nonzero()[0]
            at = int(places[free[gap[free].argmin()]])
        else:
            self.price[block] += self.worth[block]
            self._throw_out(meets[(bottom < at + size) & (top > at)])
        self.offset[block] = at
        return count

    def _throw_out(self, blocks: Ints) -> None:
        """They wait outside; the largest is the next one."""
        self.offset[blocks] = self.goal
        self.outside += blocks[self.worth[blocks].argsort(kind="stable")].tolist()
