"""Valley filling: a packing grown from the bottom, one block at a time, without ever going back.

The tops of the placed blocks form a skyline over the sections. Its lowest valley is filled next: no block that reaches
over a wall of the valley can lie below that wall, so only blocks inside the valley may use its floor. Among these, a
block that covers the valley's *critical* section (the one with most bytes still to place) is taken; where none covers
it, that part of the floor is given up and rises. Twenty thousand blocks take about a second.
"""

from bisect import bisect_right
from heapq import heappop, heappush

import numpy as np

from planner.solve.packing.sections import Instance, Ints, loads

PRIORITIES = ("widest", "area", "largest")


def fill_valleys(problem: Instance, priority: str) -> list[int]:
    """Offsets; among the blocks that could be next, take the first by `priority` (one of PRIORITIES)."""
    return _Filling(problem, priority).fill()


class Skyline:
    """Segments [start, end) of one floor each, chained by their ends; the lowest is found by a heap."""

    def __init__(self, problem: Instance) -> None:
        self.lower, self.upper, self.size = (
            np.array(x, np.int64) for x in (problem.lower, problem.upper, problem.size)
        )
        self.problem, self.sections = problem, problem.count
        self.left_to_place = loads(problem)
        """Units per section."""
        self._by_end: Ints = self.upper.argsort(kind="stable")
        self._ends: list[int] = self.upper[self._by_end].tolist()
        self._waiting_from: Ints = self.lower[self._by_end]
        """In the order of their ends, where blocks begin that wait; of others less than any section."""
        self._place: list[int] = self._by_end.argsort().tolist()
        """Block -> its place in that order."""
        self.end: dict[int, int] = {}
        self.floor: dict[int, int] = {}
        self.start: dict[int, int] = {}
        """end of a segment -> its start"""
        self.heap: list[tuple[int, int]] = []
        self.add((0, problem.count, 0))

    def lowest(self) -> tuple[int, int, int]:
        """Take the lowest valley out of the skyline, joined with neighbours on the same level."""
        while True:
            floor, left = heappop(self.heap)
            if self.floor.get(left) == floor:
                break
        right = self._remove(left)
        while right < self.sections and self.floor[right] == floor:
            right = self._remove(right)
        while left > 0 and self.floor[self.start[left]] == floor:
            left = self.start[left]
            self._remove(left)
        return left, right, floor

    def wall(self, left: int, right: int) -> int:
        """The lower one of a valley's walls."""
        walls = [self.floor[self.start[left]]] if left > 0 else []
        return min(walls + ([self.floor[right]] if right < self.sections else []))

    def add(self, *parts: tuple[int, int, int]) -> None:
        """(start, end, floor) of new segments; empty ones are left out."""
        for left, right, floor in parts:
            if left < right:
                self.end[left], self.floor[left], self.start[right] = right, floor, left
                heappush(self.heap, (floor, left))

    def fitting(self, left: int, right: int) -> Ints:
        """Waiting blocks inside a range of sections, in the order of their ends."""
        inside = slice(bisect_right(self._ends, left), bisect_right(self._ends, right))
        return self._by_end[inside][self._waiting_from[inside] >= left]

    def place(self, block: int) -> tuple[int, int, int]:
        """Take a block from those that wait: its first section, its last and one more, its size."""
        first, last, size = self.problem.lower[block], self.problem.upper[block], self.problem.size[block]
        self._waiting_from[self._place[block]] = -1
        self.left_to_place[first:last] -= size
        return first, last, size

    def _remove(self, left: int) -> int:
        right = self.end.pop(left)
        del self.floor[left], self.start[right]
        return right


class _Filling(Skyline):
    def __init__(self, problem: Instance, priority: str) -> None:
        super().__init__(problem)
        self.rank = np.array(ranks(problem, priority))

    def fill(self) -> list[int]:
        offsets = np.zeros(len(self.size), np.int64)
        for _ in range(len(self.size)):
            block, floor = self._next()
            offsets[block] = floor
        return [int(x) for x in offsets]

    def _next(self) -> tuple[int, int]:
        """Place one more block: which, and where."""
        while True:
            left, right, floor = self.lowest()
            fitting = self.fitting(left, right)
            if not len(fitting):
                self.add((left, right, self.wall(left, right)))
                continue
            critical = left + int(self.left_to_place[left:right].argmax())
            covering = fitting[(self.lower[fitting] <= critical) & (self.upper[fitting] > critical)]
            if not len(covering):
                self._give_up(left, right, floor, critical, fitting)
                continue
            block = int(covering[self.rank[covering].argmin()])
            first, last, size = self.place(block)
            self.add((left, first, floor), (first, last, floor + size), (last, right, floor))
            return block, floor

    def _give_up(self, left: int, right: int, floor: int, critical: int, fitting: Ints) -> None:
        """Raise the sections around the critical one that no fitting block covers."""
        change = np.zeros(right - left + 1, np.int64)
        np.add.at(change, self.lower[fitting] - left, 1)
        np.subtract.at(change, self.upper[fitting] - left, 1)
        covered = np.flatnonzero(np.cumsum(change)[:-1]) + left
        at = int(np.searchsorted(covered, critical))
        first = int(covered[at - 1]) + 1 if at else left
        last = int(covered[at]) if at < len(covered) else right
        levels = [floor + int(self.size[fitting].min())]  # the next floor that a neighbour inside the valley can get
        if first == left and left > 0:
            levels.append(self.floor[self.start[left]])
        if last == right and right < self.sections:
            levels.append(self.floor[right])
        self.add((left, first, floor), (first, last, min(levels)), (last, right, floor))


def ranks(problem: Instance, priority: str) -> list[int]:
    """The place of every block in the order of preference."""
    width = np.array(problem.upper) - np.array(problem.lower)
    size = np.array(problem.size, np.int64)
    area = width.astype(float) * size
    keys = {"widest": (-size, -width), "area": (-size, -area), "largest": (-width, -size)}[priority]
    rank = np.empty(problem.blocks, np.int64)
    rank[np.lexsort(keys)] = np.arange(problem.blocks)
    return [int(r) for r in rank]
