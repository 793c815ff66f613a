"""Bytes while nodes start out of turn: what is in use now, and whether the rest still fits.

All nodes of a program could run one after the other, in the *lean* order, within some number of bytes. Some of them
start earlier than that. Then `alive` says, for every place of the lean order, how many bytes are in use there if what
is left runs in that order from now on:

    lean order  a b c d, x made by a (8 bytes) and read by c and d, y made by d (4 bytes)      alive  8 8 8 12
    d starts behind a: y is there from b on, and x is freed by c                               alive  - 12 12
"""

from bisect import bisect_right, insort
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf
from typing import Any

import numpy as np

from planner.graph.model import Graph
from planner.solve.liveness import Liveness, liveness, scratch_id
from planner.solve.schedule import Schedule
from planner.units import align

Ints = np.ndarray[Any, np.dtype[np.int64]]

GONE = -(2**62)
"""Less than any sum of bytes."""


@dataclass(frozen=True)
class Lifetimes:
    """Which nodes touch which blocks, in the lean order of one program, one node after the other."""

    place: Mapping[str, int]
    """node id -> its place in the order"""
    touches: Mapping[str, tuple[str, ...]]
    """node id -> the blocks that it needs, of those that do not live all the time"""
    places: Mapping[str, tuple[int, ...]]
    """block -> where it is needed, in order; what stays when the program has ended also behind the last node"""
    size: Mapping[str, int]
    always: int
    """Bytes of everything else in the first pool."""
    alive: Ints
    """Bytes in use at every place, and behind the last node."""

    @property
    def peak(self) -> int:
        return int(self.alive.max())

    @cached_property
    def sized(self) -> Mapping[str, tuple[tuple[str, int], ...]]:
        """node id -> the blocks that it needs, with their sizes"""
        return {node: tuple((block, self.size[block]) for block in blocks) for node, blocks in self.touches.items()}


def lifetimes(
    graph: Graph, schedules: Mapping[str, Schedule], program: str, keep: Collection[str], elsewhere: Collection[str]
) -> Lifetimes:
    """`schedules`: of all programs, this one's one node after the other, in the lean order. `keep`: values that stay
    until their program ends. `elsewhere`: blocks outside the first pool."""
    order = schedules[program].order
    live = liveness(graph, schedules, keep)
    names = [p.name for p in graph.programs]
    first = sum(len(schedules[name].order) + 1 for name in names[: names.index(program)])
    end = len(order)
    here = {b.id: b for b in live.blocks if b.id not in elsewhere and first < b.upper and b.lower <= first + end}
    within = {i for i, b in here.items() if first <= b.lower and (b.lower > first or b.upper <= first + end)}
    touches = _touches(schedules[program], live, within)
    places: dict[str, list[int]] = {}
    for at, node in enumerate(order):
        for block in touches[node.id]:
            places.setdefault(block, []).append(at)
    for block, found in places.items():
        if here[block].upper > first + end:
            found.append(end)
    size = {i: int(align(here[i].size)) for i in places}
    always = sum(align(b.size) for i, b in here.items() if i not in places)
    change = [0] * (end + 2)
    for block, found in places.items():
        change[found[0]] += size[block]
        change[found[-1] + 1] -= size[block]
    alive = np.fromiter(accumulate(change[:-1]), np.int64) + always
    place = {n.id: at for at, n in enumerate(order)}
    return Lifetimes(place, touches, {b: tuple(found) for b, found in places.items()}, size, int(always), alive)


def _touches(schedule: Schedule, live: Liveness, within: Collection[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for node in schedule.order:
        blocks = dict.fromkeys(live.root[v] for v in (*node.reads, *node.writes))
        blocks[scratch_id(schedule.program, node.id)] = None
        found[node.id] = tuple(b for b in blocks if b in within)
    return found


class Room:
    """Bytes in use while the nodes of a program start in some order."""

    def __init__(self, lives: Lifetimes) -> None:
        self._lives = lives
        self._alive = lives.alive.copy()
        """Bytes in use at every place, if what is left ran in the lean order; where a node has started, GONE."""
        self._left = {block: list(places) for block, places in lives.places.items()}
        """block -> the places of those nodes that need it and have not started"""
        self._until: dict[str, float] = {}
        """block that is in use -> when the last node that has started with it ends, ns"""
        self._held = lives.always
        """Bytes of the blocks in use that others are still to need."""
        self._going: list[tuple[float, int]] = []
        """(when it will be free, its size) of the other blocks in use, in order"""
        self._waiting = [True] * (len(lives.place) + 1)
        """Per place of the lean order, whether its node has not started; what stays at the end never has."""
        self.head = 0
        """The first place in the lean order whose node has not started."""
        self.least, self.below = 0, inf
        """Whatever has been asked has the same answer within every limit from `least` up to, but without, `below`."""

    def leaves_enough(self, node: str, limit: int) -> bool:
        """Whether everything else can still run, one after the other in the lean order, within `limit` bytes, or with
        no more than it needs anyway."""
        head, at = self.head, self._lives.place[node]
        changes = self._changes(node) if at > head else []
        if all(more <= 0 for _, more in changes):
            return True
        now = self._alive[head:at]
        if all(first == head for first, _ in changes):
            everywhere = sum(more for _, more in changes)
            return everywhere <= 0 or self._within(int(now.max()) + everywhere, limit)
        then = now.copy()
        for first, more in changes:
            then[first - head :] += more
        return self._within(int(then[then > now].max(initial=0)), limit)

    def free_at(self, node: str, start: float, limit: int) -> float:
        """When, from `start` on, its bytes are free beside all that is in use; inf: only when others have run.

        What has started counts as if it had by then, which is certain to be enough for those that start later."""
        needed = self._held
        for block, size in self._lives.sized[node]:
            if block not in self._until:
                needed += size
        going = self._going[bisect_right(self._going, (start, inf)) :]
        for _, size in going:
            needed += size
        when = start
        for end, size in going:
            if self._within(needed, limit):
                return when
            needed, when = needed - size, end
        return when if self._within(needed, limit) else inf

    def _within(self, needed: int, limit: int) -> bool:
        if needed > limit:
            self.below = min(self.below, needed)
            return False
        self.least = max(self.least, needed)
        return True

    def take(self, node: str, end: float) -> None:
        """The node has been started, and ends at `end`, ns."""
        at, until = self._lives.place[node], self._until
        for first, more in self._changes(node):
            self._alive[first:at] += more
        for block, size in self._lives.sized[node]:
            left = self._left[block]
            if block not in until:
                self._held += size
                until[block] = end
            elif end > until[block]:
                until[block] = end
            left.remove(at)
            if not left:
                self._held -= size
                insort(self._going, (until[block], size))
        self._alive[at] = GONE
        self._waiting[at] = False
        while not self._waiting[self.head]:
            self.head += 1

    def forget(self, before: float) -> None:
        """Nothing starts any more before that time, ns."""
        if self._going and self._going[0][0] <= before:
            del self._going[: bisect_right(self._going, (before, inf))]

    def _changes(self, node: str) -> list[tuple[int, int]]:
        """How many bytes more are in use once the node has run: from one place of the lean order up to, but without,
        the node's own. What it touches first of all it makes: so it does in the lean order."""
        at, head, found = self._lives.place[node], self.head, list[tuple[int, int]]()
        for block, size in self._lives.sized[node]:
            left = self._left[block]
            if block in self._until:
                if len(left) == 1:
                    found.append((head, -size))
            elif len(left) > 1:
                found.append((head, size))
            if len(left) > 1 and left[-2] + 1 < left[-1] == at:
                found.append((left[-2] + 1, -size))
        return found
