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
from functools import cached_property
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

    @cached_property
    def place(self) -> Mapping[str, int]:
        """node id -> its place in the wanted order"""
        return {n.id: at for at, n in enumerate(self.wanted)}

    @cached_property
    def tasks(self) -> tuple["Task", ...]:
        """The nodes in the wanted order."""
        needs = dependencies(self.graph, self.graph.program[self.lean.program])
        followers: dict[str, list[int]] = {n: [] for n in needs}
        for follower, needed in needs.items():
            for name in needed:
                followers[name].append(self.place[follower])
        value, found = self.graph.value, list[Task]()
        for node in self.wanted:
            choice, lanes = self.lean.choices[node.id], self.lean.lanes[node.id]
            found.append(
                Task(
                    node=node,
                    needs=len(needs[node.id]),
                    followers=tuple(followers[node.id]),
                    operands=tuple(sorted(node.reads, key=lambda v: -value[v].type.bytes)),
                    writes=node.writes,
                    took=self.took.get(node.id, 0.0),
                    stages=len(choice.stage_ns),
                    slices=choice.mode.slices,
                    lanes=lanes,
                    group=_group(lanes[0], self),
                    copies=lanes[0] >= self.lanes,
                )
            )
        return tuple(found)

    @cached_property
    def lean_places(self) -> tuple[int, ...]:
        """The lean order's nodes as places in the wanted order."""
        return tuple(self.place[n.id] for n in self.lean.order)


@dataclass(frozen=True, slots=True)
class Task:
    """A node, and what is the same of it within any limit."""

    node: Node
    needs: int
    """Nodes that must have started before it."""
    followers: tuple[int, ...]
    """Places in the wanted order of those that need it."""
    operands: tuple[str, ...]
    """What it reads, the largest first."""
    writes: tuple[str, ...]
    took: float
    stages: int
    """None: it is only a view."""
    slices: int
    lanes: tuple[int, ...]
    """Those that it usually has."""
    group: range
    """Those that it may have."""
    copies: bool
    """Its lane is a copy lane, and keeps its order."""

    @property
    def works(self) -> bool:
        """Whether it keeps a lane busy that others could have."""
        return self.stages > 0 and not self.copies


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
    place: int
    """In the wanted order."""
    at: float
    end: float


class _Run:
    def __init__(self, work: Work, limit: int) -> None:
        self._work, self._limit, self.room = work, limit, Room(work.lives)
        self._tasks = work.tasks
        self._missing = [task.needs for task in self._tasks]
        self._ready = [place for place, count in enumerate(self._missing) if not count]
        """Places in the wanted order of the nodes that wait for none that has not started."""
        self._operands = [0.0 for _ in self._tasks]
        """By place, when its operands are there, as far as their nodes have started, ns."""
        lanes = max(work.lanes, 1 + max((lane for task in self._tasks for lane in task.lanes), default=0))
        self._free = [0.0 for _ in range(lanes)]
        """When every lane is free, ns."""
        self._in_turn = {group.start: [0.0 for _ in group] for group in (_group(lane, work) for lane in range(lanes))}
        """First lane of a group -> the same for all of its lanes, the first one that is free first."""
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
            start = self._may_start(self._ready[0]) or self._first_of_lean()
            self._begin(self._filler(start) or start)
        return Schedule(lean.program, tuple(self._order), lean.choices, self._lanes, self._spans)

    def _may_start(self, place: int) -> _Start | None:
        """When; None: not before others have run."""
        node = self._tasks[place].node.id
        if not self.room.leaves_enough(node, self._limit):
            return None
        at = self.room.free_at(node, self._earliest(place), self._limit)
        return None if at == inf else _Start(place, at, self._end(place, at))

    def _first_of_lean(self) -> _Start:
        place = self._work.lean_places[self.room.head]
        earliest = self._earliest(place)
        at = self.room.free_at(self._tasks[place].node.id, earliest, self._limit)
        # The lean order itself may need more than the limit: then it waits for all that runs.
        at = at if at < inf else max(earliest, *self._free)
        return _Start(place, at, self._end(place, at))

    def _filler(self, until: _Start) -> _Start | None:
        """A node that may run before another one without making it late."""
        waits = self._tasks[until.place]
        latest = until.end - waits.took
        if latest <= self._in_turn[0][0]:
            return None
        free = bisect_right(self._in_turn[waits.group.start], latest) - waits.slices
        """Lanes that are left to others by then."""
        for place in self._ready[: bisect_right(self._ready, self._ready[0] + LOOK)]:
            task = self._tasks[place]
            if place == until.place or not task.works:
                continue
            if self._in_time(task, self._earliest(place), latest, free):
                start = self._may_start(place)
                if start and self._in_time(task, start.at, latest, free):
                    return start
        return None

    @staticmethod
    def _in_time(task: Task, at: float, latest: float, free: int) -> bool:
        """Whether the first slice ends before another node's last one may start, at `latest`, or needs no more lanes
        than are left free then. Slices are put between others wherever a lane is free: the last of many may end later.
        """
        return at + task.took <= latest or (at < latest and task.slices <= free)

    def _earliest(self, place: int) -> float:
        """When operands and lanes are there, memory aside."""
        task, ready = self._tasks[place], self._operands[place]
        if not task.stages:
            return ready
        free = self._in_turn[task.group.start][0]
        at = ready if ready > free else free
        # A copy never starts before what it stands behind.
        return max(at, self._now) if task.copies else at

    def _end(self, place: int, at: float) -> float:
        """Of a node that starts at a certain time, its first slice if lanes are free one by one."""
        task = self._tasks[place]
        if not task.stages:
            return at
        last = self._in_turn[task.group.start][task.slices - 1]
        return (last if last > at else at) + task.took

    def _lanes_of(self, task: Task, at: float) -> tuple[int, ...]:
        """The lanes that are free first, among those the ones that made its largest operand, or that it usually has."""
        group, free, count = task.group, self._free, task.slices
        if not task.stages:
            return task.lanes[:1]
        if count == len(group):
            return tuple(group)
        idle = [lane for lane in group if free[lane] <= at]
        if len(idle) < count:
            return tuple(sorted(sorted(group, key=lambda lane: (free[lane], lane))[:count]))
        if len(idle) == count:
            return tuple(idle)
        before = next((self._made_on[v] for v in task.operands if v in self._made_on), ())
        liked = dict.fromkeys([*(lane for lane in (*before, *task.lanes) if lane in idle), *idle])
        return tuple(sorted(islice(liked, count)))

    def _begin(self, start: _Start) -> None:
        place, at, end = start
        task, free = self._tasks[place], self._free
        node, lanes = task.node, self._lanes_of(task, at)
        if task.stages:
            for lane in lanes:
                # A slice starts when its lane is free; those of further stages wait for all of the first.
                free[lane] = max(free[lane], at) + task.took if task.stages == 1 else end
            self._in_turn[task.group.start] = sorted([free[lane] for lane in task.group])
        self.room.take(node.id, end)
        self.room.forget(self._in_turn[0][0])
        self._now = max(self._now, at)
        self._order.append(node)
        self._lanes[node.id] = lanes
        # Starts are in order: what started in a gap counts as if it had started with the node behind the gap.
        self._spans[node.id] = (self._now, max(end, self._now))
        made = lanes if task.stages else self._made_on.get(node.inputs[0], ()) if node.inputs else ()
        for value in task.writes:
            self._made_on[value] = made
        self._ready.remove(place)
        for follower in task.followers:
            self._operands[follower] = max(self._operands[follower], end)
            self._missing[follower] -= 1
            if not self._missing[follower]:
                insort(self._ready, follower)


def _group(lane: int, work: Work) -> range:
    """The lanes that a node may have instead of one."""
    if lane >= work.lanes:
        return range(lane, lane + 1)
    return range(work.cores) if lane < work.cores else range(work.cores, work.lanes)
