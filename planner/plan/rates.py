"""The replay of lane programs where nodes slow each other down: every slice has a speed that changes over time.

Slices of one node run at one speed, given by which other nodes run (plan/contention.py), divided further where the
core's other thread is busy. So slices with the same node and the same neighbour on the core form a *group* with a
clock of its own, which counts work done; a slice ends when its group's clock has advanced by its predicted time. Only
groups' speeds change, at the start and the end of nodes, so the cost is one heap operation per slice and a look at
each group per event, whatever the number of lanes.

Example: a copy of 100 ns that uses all bandwidth, and a second one that starts at 50: both run at half speed, the
first ends at 150, the second has done 50 of its 100 by then and ends at 200.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.plan.contention import Contention, smt_factor
from planner.plan.gates import Gates


@dataclass(slots=True)
class _Group:
    """Slices that run at one speed."""

    node: int
    neighbour: int
    """Node on the cores' other threads; -1: none."""
    clock: float = 0.0
    factor: float = 1.0
    due: list[tuple[float, int]] = field(default_factory=list)
    """(clock at the end, slice): a heap; entries of slices that have moved to another group are stale."""


class Replay:
    """One run of `replay`; its outcome is in `start` and `end`."""

    def __init__(
        self,
        waits: Sequence[tuple[int, ...]],
        gates: Gates,
        took: Sequence[float],
        lane_of: Sequence[int],
        lengths: Sequence[int],
        node_of: Sequence[int],
        nodes: Sequence[str],
        sync_ns: float,
        contention: Contention,
    ) -> None:
        total, lanes = len(waits), len(lengths)
        self.start, self.end = [0.0] * total, [-1.0] * total
        self.at: list[int] = []
        self.stop: list[int] = []
        position = 0
        for length in lengths:
            self.at.append(position)
            position += length
            self.stop.append(position)
        self._waits, self._gates, self._took, self._lane_of, self._node_of = waits, gates, took, lane_of, node_of
        self._nodes, self._sync, self._contention = nodes, sync_ns, contention
        self._siblings = contention.sibling_lanes(lanes)
        self._free = [0.0] * lanes
        self._running = [-1] * lanes
        """lane -> its slice that runs"""
        self._starts: list[tuple[float, int]] = []
        """(time, lane): a heap"""
        self._sleeping: dict[int, list[int]] = {}
        self._active: dict[int, int] = {}
        """node -> how many of its slices run"""
        self._groups: dict[tuple[int, int], _Group] = {}
        self._group_of: list[_Group | None] = [None] * total
        self._due_at = [0.0] * total
        self._now = 0.0
        self._changed = False
        self.done = 0

    def run(self) -> None:
        """Until nothing runs or can start; `done` then says how many slices ended."""
        for lane in range(len(self.at)):
            self._look(lane)
        while self._starts or self._groups:
            step, ending = self._next_end()
            if self._starts and self._starts[0][0] <= self._now + step:
                self._pass(max(0.0, self._starts[0][0] - self._now))
                self._now = max(self._now, self._starts[0][0])
                while self._starts and self._starts[0][0] <= self._now:
                    self._begin(heapq.heappop(self._starts)[1])
            else:
                self._pass(step)
                self._now += step
                for group in ending:
                    self._finish_due(group)
            if self._changed:
                self._set_speeds()

    # -- the clock ---------------------------------------------------------------------------------------------
    def _next_end(self) -> tuple[float, list[_Group]]:
        """Time until the next slice ends, and the groups in which one does."""
        soonest, ending = float("inf"), []
        for group in self._groups.values():
            step = (group.due[0][0] - group.clock) * group.factor
            if step < soonest - 1e-6:
                soonest, ending = step, [group]
            elif step <= soonest + 1e-6:
                ending.append(group)
        return max(0.0, soonest), ending

    def _pass(self, step: float) -> None:
        for group in self._groups.values():
            group.clock += step / group.factor

    def _set_speeds(self) -> None:
        self._changed = False
        active = sorted(self._active)
        found = self._contention.factors([self._nodes[n] for n in active])
        loads, sharing = self._contention.loads, self._contention.sharing
        for group in self._groups.values():
            factor = found[self._nodes[group.node]]
            if group.neighbour >= 0:
                own, other = loads[self._nodes[group.node]], loads[self._nodes[group.neighbour]]
                factor *= smt_factor(own.bound, other.bound, sharing)
            group.factor = factor

    # -- slices ------------------------------------------------------------------------------------------------
    def _look(self, lane: int) -> None:
        """Let the lane's next slice start as soon as it may, or sleep until what it waits for has ended."""
        row = self.at[lane]
        if row == self.stop[lane]:
            return
        begin = self._free[lane]
        for other in self._waits[row]:
            if other >= self._gates.total:
                finished = self._gates.seen(other, lane, self._sync)
            else:
                finished = self.end[other]
                if finished >= 0 and self._lane_of[other] != lane:
                    finished += self._sync
            if finished < 0:
                self._sleeping.setdefault(other, []).append(lane)
                return
            if finished > begin:
                begin = finished
        heapq.heappush(self._starts, (begin, lane))

    def _begin(self, lane: int) -> None:
        row = self.at[lane]
        node = self._node_of[row]
        self.start[row] = self._now
        self._running[lane] = row
        if node not in self._active:
            self._changed = True
        self._active[node] = self._active.get(node, 0) + 1
        neighbour = -1
        for other in self._siblings[lane]:
            beside = self._running[other]
            if beside >= 0:
                neighbour = self._node_of[beside]
                self._move(beside, node)
        self._join(row, node, neighbour, self._took[row])

    def _join(self, row: int, node: int, neighbour: int, work: float) -> None:
        group = self._groups.get((node, neighbour))
        if group is None:
            group = self._groups[node, neighbour] = _Group(node, neighbour)
            self._changed = True
        self._group_of[row] = group
        self._due_at[row] = group.clock + work
        heapq.heappush(group.due, (group.clock + work, row))

    def _move(self, row: int, neighbour: int) -> None:
        """A running slice has another neighbour on its core from now on (-1: none)."""
        group = self._group_of[row]
        if group is None or group.neighbour == neighbour:
            return
        left = max(0.0, self._due_at[row] - group.clock)
        self._group_of[row] = None
        self._tidy(group)
        self._join(row, group.node, neighbour, left)

    def _tidy(self, group: _Group) -> None:
        """Drop stale entries at the top, and the group when nothing is left."""
        while group.due and self._group_of[group.due[0][1]] is not group:
            heapq.heappop(group.due)
        if not group.due:
            self._groups.pop((group.node, group.neighbour), None)

    def _finish_due(self, group: _Group) -> None:
        ended = []
        while group.due and group.due[0][0] <= group.clock + 1e-6:
            _, row = heapq.heappop(group.due)
            if self._group_of[row] is group:
                self._group_of[row] = None
                ended.append(row)
            self._tidy(group)
        for row in ended:
            self._finish(row)

    def _finish(self, row: int) -> None:
        lane, node = self._lane_of[row], self._node_of[row]
        self.end[row] = self._free[lane] = self._now
        self.done += 1
        self.at[lane] += 1
        self._running[lane] = -1
        self._active[node] -= 1
        if not self._active[node]:
            del self._active[node]
            self._changed = True
        for other in self._siblings[lane]:
            if self._running[other] >= 0:
                self._move(self._running[other], -1)
        self._look(lane)
        for sleeper in self._sleeping.pop(row, ()):
            self._look(sleeper)
        if self._gates.of and (opened := self._gates.arrive(row, lane, self._now)) >= 0:
            for sleeper in self._sleeping.pop(opened, ()):
                self._look(sleeper)
