"""Pass *corun* under a memory budget: nodes side by side within a number of bytes.

A schedule that co-runs starts nodes early, which hold their results, and late, which free their operands. Where memory
is short its nodes keep their modes, and so their bits, and get new starts, by list scheduling with two orders:

    wanted   in which they start where memory is no object: as in the schedule, recomputations before what reads them
    lean     in which they need the fewest bytes, one after the other

The next node in the wanted order starts as soon as its lanes are free, its operands there, and its bytes free beside
all that is in use by then (room.py), if everything that has not started could still run in the lean order after it.
Otherwise the first node of the lean order is next, which always may. Where lanes would idle until then, some other node
runs first that does not make it late.

Example, 2 lanes; d1, d2, d3 each leave 8 bytes that the next one reads, and its own one of w1, w2, w3 as well; all take
5 ns on one lane. Wanted: d1 d2 d3 w1 w2 w3, which holds 24 bytes; lean: d1 w1 d2 w2 d3 w3, 16 bytes and 30 ns. Within
16 bytes d3 may not start while w1 needs what d1 left, so w1 is next, beside d2:

    lane 0   d1 d2 d3 w3             20 ns
    lane 1      w1 w2
"""

from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import NamedTuple

from planner.graph.dependencies import dependencies
from planner.graph.model import Graph, Node
from planner.solve.memory.room import Lifetimes, Room
from planner.solve.schedule import Schedule

LOOK = 24
"""How far ahead in the wanted order a filler may stand: what starts too early takes the bytes of what is nearer."""


@dataclass(frozen=True)
class Work:
    """One program of the expanded graph, about to run side by side."""

    graph: Graph
    lean: Schedule
    """One node after the other; its lanes say on which group of lanes a node may run: cores, their second threads, or
    its own copy lane."""
    wanted: tuple[Node, ...]
    lives: Lifetimes
    took: Mapping[str, float]
    """node id -> ns that it takes beside others, as predicted"""
    cores: int
    lanes: int
    """Of which the first `cores` have a core of their own, and further ones are second threads; copy lanes come
    behind."""


class Within(NamedTuple):
    """What comes of a limit, and of every other one from `least` up to, but without, `below`."""

    schedule: Schedule
    least: int
    below: float


def side_by_side(work: Work, limit: int) -> Within:
    """The nodes in their modes, started so that no more than `limit` bytes are in use at once, as far as the lean order
    can do with so many."""
    run = _Run(work, limit)
    schedule = run.schedule()
    return Within(schedule, run.room.least, run.room.below)


class _Start(NamedTuple):
    node: Node
    at: float
    end: float


class _Run:
    def __init__(self, work: Work, limit: int) -> None:
        self._work, self._limit, self.room = work, limit, Room(work.lives)
        needs = dependencies(work.graph, work.graph.program[work.lean.program])
        self._missing = {node: len(needed) for node, needed in needs.items()}
        self._followers: dict[str, list[str]] = {node: [] for node in needs}
        for node, needed in needs.items():
            for other in needed:
                self._followers[other].append(node)
        self._place = {n.id: at for at, n in enumerate(work.wanted)}
        self._ready = sorted(self._place[n] for n, count in self._missing.items() if not count)
        """Places in the wanted order of the nodes that wait for none that has not started."""
        self._operands = dict.fromkeys(needs, 0.0)
        """node id -> when its operands are there, as far as their nodes have started, ns"""
        lanes = range(max(work.lanes, 1 + max((x for found in work.lean.lanes.values() for x in found), default=0)))
        self._free = [0.0 for _ in lanes]
        """When every lane is free, ns."""
        self._group = [_group(lane, work) for lane in lanes]
        self._in_turn = [[0.0 for _ in group] for group in self._group]
        """The same for all lanes of a lane's group, the first one that is free first."""
        self._made_on: dict[str, tuple[int, ...]] = {}
        """value -> lanes of the node that wrote it"""
        self._now = 0.0
        """The latest start."""
        self._order: list[Node] = []
        self._lanes: dict[str, tuple[int, ...]] = {}
        self._spans: dict[str, tuple[float, float]] = {}

    def schedule(self) -> Schedule:
        lean = self._work.lean
        while self._ready:
            start = self._may_start(self._work.wanted[self._ready[0]]) or self._first_of_lean()
            self._begin(self._filler(start) or start)
        return Schedule(lean.program, tuple(self._order), lean.choices, self._lanes, self._spans)

    def _may_start(self, node: Node) -> _Start | None:
        """When; None: not before others have run."""
        if not self.room.leaves_enough(node.id, self._limit):
            return None
        start = self._earliest(node)
        at = self.room.free_at(node.id, start.at, self._limit)
        return None if at == inf else self._start(node, at)

    def _first_of_lean(self) -> _Start:
        start = self._earliest(self._work.lean.order[self.room.head])
        at = self.room.free_at(start.node.id, start.at, self._limit)
        # The lean order itself may need more than the limit: then it waits for all that runs.
        return self._start(start.node, at if at < inf else max(start.at, *self._free))

    def _filler(self, until: _Start) -> _Start | None:
        """A node that may run before another one without making it late."""
        latest = until.end - self._work.took.get(until.node.id, 0.0)
        if latest <= self._in_turn[0][0]:
            return None
        for place in self._ready[: bisect_right(self._ready, self._ready[0] + LOOK)]:
            node = self._work.wanted[place]
            if node.id != until.node.id and self._is_work(node) and self._in_time(self._earliest(node), until, latest):
                start = self._may_start(node)
                if start and self._in_time(start, until, latest):
                    return start
        return None

    def _in_time(self, start: _Start, until: _Start, latest: float) -> bool:
        """Whether the first slice ends before another node's last one may start, or leaves it as many lanes as it needs
        by then. Slices are put between others wherever a lane is free: the last of many may end later."""
        if start.at + self._work.took[start.node.id] <= latest:
            return True
        lean = self._work.lean
        free = bisect_right(self._in_turn[lean.lanes[until.node.id][0]], latest)
        counts = [lean.choices[x.node.id].mode.slices for x in (start, until)]
        return start.at < latest and free >= sum(counts)

    def _is_work(self, node: Node) -> bool:
        """Whether it keeps a lane busy that others could have."""
        return bool(self._work.lean.choices[node.id].stage_ns) and self._work.lean.lanes[node.id][0] < self._work.lanes

    def _earliest(self, node: Node) -> _Start:
        """When operands and lanes are there, memory aside."""
        first, ready = self._work.lean.lanes[node.id][0], self._operands[node.id]
        if not self._work.lean.choices[node.id].stage_ns:
            return _Start(node, ready, ready)
        # A copy never starts before what it stands behind.
        return self._start(node, max(ready, self._in_turn[first][0], self._now if first >= self._work.lanes else 0.0))

    def _start(self, node: Node, at: float) -> _Start:
        """Its start at a certain time, its first slice's if lanes are free one by one."""
        choice = self._work.lean.choices[node.id]
        if not choice.stage_ns:
            return _Start(node, at, at)
        last = self._in_turn[self._work.lean.lanes[node.id][0]][choice.mode.slices - 1]
        return _Start(node, at, max(at, last) + self._work.took[node.id])

    def _lanes_of(self, start: _Start) -> tuple[int, ...]:
        """The lanes that are free first, among those the ones that made its largest operand, or that it usually has."""
        node, free = start.node, self._free
        choice, usual = self._work.lean.choices[node.id], self._work.lean.lanes[node.id]
        group = self._group[usual[0]]
        if not choice.stage_ns:
            return usual[:1]
        count = choice.mode.slices
        if count == len(group):
            return tuple(group)
        idle = {lane for lane in group if free[lane] <= start.at}
        if len(idle) < count:
            return tuple(sorted(sorted(group, key=lambda lane: (free[lane], lane))[:count]))
        values = self._work.graph.value
        made = [v for v in node.reads if v in self._made_on]
        before = self._made_on[max(made, key=lambda v: values[v].type.bytes)] if made else ()
        liked = dict.fromkeys([*(lane for lane in (*before, *usual) if lane in idle), *sorted(idle)])
        return tuple(sorted(islice(liked, count)))

    def _begin(self, start: _Start) -> None:
        node, lanes = start.node, self._lanes_of(start)
        stages = len(self._work.lean.choices[node.id].stage_ns)
        if stages:
            for lane in lanes:
                # A slice starts when its lane is free; those of further stages wait for all of the first.
                own = max(self._free[lane], start.at) + self._work.took[node.id]
                self._free[lane] = own if stages == 1 else start.end
            in_turn = sorted(self._free[lane] for lane in self._group[lanes[0]])
            for lane in self._group[lanes[0]]:
                self._in_turn[lane] = in_turn
        self.room.take(node.id, start.end)
        self.room.forget(self._in_turn[0][0])
        self._now = max(self._now, start.at)
        self._order.append(node)
        self._lanes[node.id] = lanes
        # Starts are in order: what started in a gap counts as if it had started with the node behind the gap.
        self._spans[node.id] = (self._now, max(start.end, self._now))
        made = lanes if stages else self._made_on.get(node.inputs[0], ()) if node.inputs else ()
        for value in node.writes:
            self._made_on[value] = made
        self._ready.remove(self._place[node.id])
        for follower in self._followers[node.id]:
            self._operands[follower] = max(self._operands[follower], start.end)
            self._missing[follower] -= 1
            if not self._missing[follower]:
                insort(self._ready, self._place[follower])


def _group(lane: int, work: Work) -> range:
    """The lanes that a node may have instead of one."""
    if lane >= work.lanes:
        return range(lane, lane + 1)
    return range(work.cores) if lane < work.cores else range(work.cores, work.lanes)
