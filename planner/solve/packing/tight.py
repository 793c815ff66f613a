"""Packings without waste, found as planar graphs: in seconds for some hundreds of blocks, or not at all.

Where every byte below the height is used all the time, blocks that end take turns with blocks that begin: at each
moment they fall into groups, each of which hands over one stretch of bytes. Read a group as a vertex, and a block as
an edge from the group with which it begins to the one with which it ends. A packing without waste is a drawing of this
graph without crossings, edges one above the other in the order of their offsets. And every drawing with the first and
the last vertex outside is a packing without waste: sizes are a flow, as much enters a vertex as leaves it, so the
height of a face (between a block and the next one) does not depend on the way there.

    a [0, 2) size 2      b [0, 1) size 1      c [1, 2) size 1       vertices: 0 -> a, b; 1: b -> c; 2: a, c ->

Groups are found by their sums (turns.py). Where sums leave a doubt, the way is taken that can be drawn with the moments
around it. Bytes that are free for a while are blocks too (free_space.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.solve.packing.free_space import has_waste, with_free_space
from planner.solve.packing.sections import Instance, by_moment
from planner.solve.packing.turns import SURE, Ways, ways_to_take_turns

MOST_AT_ONCE = 30
"""Blocks that begin and end at one moment, on average: beyond, sums say nothing about who follows whom."""
WORK_PER_EDGE = 300
"""Steps for drawing one edge."""


class _TooMuchWork(Exception):
    pass


def pack_tight(problem: Instance, work_limit: int) -> tuple[list[int] | None, int]:
    """Offsets below the load in all sections, or None where no packing without waste was found; and the work done.

    Work is counted in steps as in exact.py.
    """
    if has_waste(problem):
        return None, 0
    lower, upper, size = with_free_space(problem)
    if 2 * len(size) > MOST_AT_ONCE * (problem.count + 1):
        return None, 0
    graph = _Graph(lower, upper, size, problem.count, work_limit)
    try:
        offsets = graph.levels() if graph.decide() else None
    except _TooMuchWork:
        offsets = None
    return offsets[: problem.blocks] if offsets else None, graph.work


class _Graph:
    """Blocks between moments, and at each moment how they take turns, once that is decided."""

    def __init__(
        self, lower: Sequence[int], upper: Sequence[int], size: Sequence[int], sections: int, work_limit: int
    ) -> None:
        self.lower, self.upper, self.size, self.sections = lower, upper, size, sections
        self.work, self.work_limit = 0, work_limit
        self.beginning, self.ending = by_moment(lower, sections), by_moment(upper, sections)
        self.ways: list[Ways] = []
        """By moment (the first and the last have none): groups that may take turns, the likeliest way first."""
        self.chosen: list[int | None] = [0] * (sections + 1)
        """By moment: the way that is taken; None while it is open."""
        for at in range(sections + 1):
            inner = 0 < at < sections
            ways = ways_to_take_turns(self.ending[at], self.beginning[at], size) if inner else Ways(((),), 0.0)
            self.ways.append(ways)

    def decide(self) -> bool:
        """Take a way at every moment such that all can be drawn: in short windows first, then in longer ones."""
        alive = sum(b - a for a, b in zip(self.lower, self.upper, strict=True))
        width = max(8, 2 * alive // len(self.size))
        while True:
            width = min(width, self.sections)
            for start in range(0, max(1, self.sections - width // 2), max(1, width // 2)):
                stop = min(start + width, self.sections)
                if not self._drawable(start, stop) and not self._again(start, stop):
                    return False
            if width == self.sections:
                return None not in self.chosen
            width *= 3

    def _again(self, start: int, stop: int) -> bool:
        """Decide what is in doubt in a window once more, the clearest first. False: it can't be drawn."""
        doubtful = [m for m in range(start + 1, stop) if self.ways[m].doubt > SURE]
        doubtful.sort(key=lambda m: (self.ways[m].doubt, m))
        for moment in doubtful:
            self.chosen[moment] = None
        if not self._drawable(start, stop):
            return False
        self._settle(doubtful, start, stop)
        for moment in doubtful:
            if self.chosen[moment] is None and not self._swap(moment, doubtful, start, stop):
                return False
        return True

    def _settle(self, moments: Sequence[int], start: int, stop: int) -> None:
        """The likeliest ways of all of them, if that can be drawn; else halves of them. What can't stays open."""
        if not moments:
            return
        for moment in moments:
            self.chosen[moment] = 0
        if self._drawable(start, stop):
            return
        for moment in moments:
            self.chosen[moment] = None
        if len(moments) > 1:
            half = len(moments) // 2
            self._settle(moments[:half], start, stop)
            self._settle(moments[half:], start, stop)
        else:
            self._choose(moments[0], start, stop)

    def _choose(self, moment: int, start: int, stop: int) -> bool:
        """The first way of a moment that can be drawn; else it stays open."""
        for way in range(len(self.ways[moment].ways)):
            self.chosen[moment] = way
            if self._drawable(start, stop):
                return True
        self.chosen[moment] = None
        return False

    def _swap(self, moment: int, doubtful: Sequence[int], start: int, stop: int) -> bool:
        """Another way at another moment, so that this one gets any; the nearest moments first."""
        if self._choose(moment, start, stop):
            return True
        for other in sorted(doubtful, key=lambda m: (abs(m - moment), m)):
            now = self.chosen[other]
            if other == moment or now is None:
                continue
            self.chosen[other] = None
            possible = self._choose(moment, start, stop)
            if possible and self._choose(other, start, stop):
                return True
            self.chosen[moment], self.chosen[other] = None, now
        return False

    def _drawable(self, start: int, stop: int) -> bool:
        """Whether the moments from `start` to `stop` have a drawing. Open ones ask for nothing."""
        graph, _ = self._graph(start, stop)
        self.work += WORK_PER_EDGE * len(graph.edges)
        if self.work > self.work_limit:
            raise _TooMuchWork
        from networkx import check_planarity

        return bool(check_planarity(graph)[0])

    def _graph(self, start: int, stop: int) -> tuple[Any, Mapping[int, int]]:
        """The graph of some moments, and block -> vertex with which it begins. Vertex 0 is all before, 1 all behind.

        A block in the middle of its edge is a vertex too, -1 - block: two groups may have several blocks in common.
        """
        origin: dict[int, int] = {}
        target: dict[int, int] = {}
        vertex = 1
        for moment in range(start + 1, stop):
            way = self.chosen[moment]
            if way is None:
                continue
            for leaving, coming in self.ways[moment].ways[way]:
                vertex += 1
                target.update(dict.fromkeys(leaving, vertex))
                origin.update(dict.fromkeys(coming, vertex))
        for block in {*target, *origin, *(self.beginning[0] if start == 0 else ())}:
            if self.lower[block] <= start:
                origin[block] = 0
            if self.upper[block] >= stop:
                target[block] = 1
        from networkx import Graph

        graph = Graph([(0, 1)])
        for block, begin in origin.items():
            if block in target:
                graph.add_edge(begin, -1 - block)
                graph.add_edge(-1 - block, target[block])
        return graph, origin

    def levels(self) -> list[int] | None:
        """The offset of each block: how high the face below it is."""
        from networkx import check_planarity

        graph, origin = self._graph(0, self.sections)
        planar, drawing = check_planarity(graph)
        if not planar:
            return None
        face: dict[tuple[int, int], int] = {}
        """Directed edge -> the face on its right."""
        for count, edge in enumerate(drawing.edges()):
            at = edge
            while at not in face:
                face[at] = count
                at = drawing.next_face_half_edge(*at)
        sides = [(face[origin[b], -1 - b], face[-1 - b, origin[b]]) for b in range(len(self.size))]
        beside: dict[int, list[tuple[int, int]]] = {}
        """face -> (neighbour, how much higher that is)"""
        for (right, left), size in zip(sides, self.size, strict=True):
            beside.setdefault(right, []).append((left, size))
            beside.setdefault(left, []).append((right, -size))
        level = {face[0, 1]: 0}
        waiting = [face[0, 1]]
        while waiting:
            here = waiting.pop()
            for other, higher in beside.get(here, ()):
                if other not in level:
                    level[other] = level[here] + higher
                    waiting.append(other)
        base = min(level.values())
        return [min(level[right], level[left]) - base for right, left in sides]
