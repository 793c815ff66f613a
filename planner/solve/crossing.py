"""Pass *crossing*: which bytes a slice touches that lie in another lane's caches.

Every cache line of the arena has holders: the lanes that have a copy of it. It is dirty while nobody but its last
writer has read it. What happens to a line, as measured on an AMD Zen 5 for all orders of three accesses:

| access | line | costs | holders afterwards |
|---|---|---|---|
| any | held by this lane alone | nothing | this lane |
| read | dirty, of another lane | fetch | this lane alone: the line moves, and may be written freely |
| read | clean, held by others | fetch | this lane too |
| write | dirty, of another lane | fetch | this lane, dirty |
| write | clean, held by others | reclaim | this lane, dirty |

Example, two lanes, lane 0 runs `a` (writes v), then both read v in `b`, then lane 0 overwrites it in `c`: `b` on lane 1
fetches v, and `c` reclaims it.

The order is walked twice, because what a step starts with is what the last one left. A node's later stages are not
charged for what its own earlier ones touched: its measured times have that already. Only programs that the caches hold
are looked at: of larger ones, what other lanes touched has mostly left them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.costs.table import CostTable
from planner.graph.model import Graph, Node
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.plan.crossing import Crossing
from planner.plan.schema import MOST_STRAINED, Crossed
from planner.solve.liveness import Liveness, scratch_id
from planner.solve.schedule import Schedule
from planner.solve.touched import Part, touches_of

LINE = 64
"""Bytes that move between caches as one."""
MOST_SLICES = 20_000
"""Programs of more slices are planned without this pass, which would take seconds."""

Lines = slice | np.ndarray[Any, np.dtype[np.int64]]


def crossed_bytes(
    graph: Graph,
    schedule: Schedule,
    live: Liveness,
    offsets: Mapping[str, int],
    costs: CostTable,
    crossing: Crossing,
    cache_bytes: int,
) -> dict[str, tuple[Crossed, ...]]:
    """node id -> per stage what the slice touches that it costs most, for the nodes that touch anything of the kind.
    Empty where `crossing` is nothing."""
    if not any(crossing) or sum(len(lanes) for lanes in schedule.lanes.values()) > MOST_SLICES:
        return {}
    end = max((offsets[block.id] + block.size for block in live.blocks if block.id in offsets), default=0)
    if end > cache_bytes:
        return {}
    nodes = [node for node in schedule.order if schedule.choices[node.id].stage_ns]
    walks = [_Walk(graph, node, schedule, live, offsets) for node in nodes]
    caches = _Caches(-(-end // LINE))
    found: dict[str, tuple[Crossed, ...]] = {}
    for _ in range(2):
        found = {}
        for walk in walks:
            caches.begin_node()
            stages = tuple(_stage(caches, walk, stage, crossing) for stage in range(walk.stages))
            if any(s.fetched or s.reclaimed for s in stages):
                found[walk.node.id] = stages
    return {walk.node.id: walk.weighted(found[walk.node.id], costs) for walk in walks if walk.node.id in found}


def _stage(caches: "_Caches", walk: "_Walk", stage: int, crossing: Crossing) -> Crossed:
    """All slices start from the same state; then all that they did happens."""
    slices = walk.touches(stage)
    worst = max((caches.counted(s) for s in slices), key=crossing.price)
    for touched in slices:
        caches.touch(touched)
    return worst


class _Touched(NamedTuple):
    """What a slice reads and writes."""

    lane: int
    reads: list[Lines]
    writes: list[Lines]


def _count(lines: Lines) -> int:
    return lines.stop - lines.start if isinstance(lines, slice) else len(lines)


class _Caches:
    """Who holds each line of the arena."""

    def __init__(self, lines: int) -> None:
        self._holders = np.zeros(lines, np.uint64)
        """One bit per lane; where there are more than 64, lanes 64 apart count as one."""
        self._dirty = np.zeros(lines, np.bool_)
        self._toucher = np.zeros(lines, np.int64)
        """The node that touched it last, by number."""
        self._counted = np.zeros(lines, np.int64)
        """The slice that last fetched it, by number."""
        self._node = self._slice = 0

    def begin_node(self) -> None:
        self._node += 1

    def counted(self, touched: _Touched) -> Crossed:
        """The bytes that a slice gets from other lanes' caches; nothing changes."""
        me = np.uint64(1 << touched.lane % 64)
        self._slice += 1
        fetched = reclaimed = 0
        for lines in touched.reads:
            foreign = self._others(lines) & ((self._holders[lines] & me) == 0)
            fetched += self._fetched(lines, foreign)
        for lines in touched.writes:
            others = self._others(lines) & ((self._holders[lines] & ~me) != 0)
            dirty = self._dirty[lines]
            reclaimed += int(np.count_nonzero(others & ~dirty))
            fetched += self._fetched(lines, others & dirty)
        return Crossed(fetched=fetched * LINE, reclaimed=reclaimed * LINE)

    def _others(self, lines: Lines) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of them somebody holds, and not because of this node."""
        found: np.ndarray[Any, np.dtype[np.bool_]] = (self._holders[lines] != 0) & (self._toucher[lines] != self._node)
        return found

    def _fetched(self, lines: Lines, wanted: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
        """A line that the slice both reads and writes comes once."""
        new = wanted & (self._counted[lines] != self._slice)
        self._counted[lines] = np.where(new, self._slice, self._counted[lines])
        return int(np.count_nonzero(new))

    def touch(self, touched: _Touched) -> None:
        me = np.uint64(1 << touched.lane % 64)
        for lines in touched.reads:
            holders, dirty = self._holders[lines], self._dirty[lines]
            foreign = (holders & me) == 0
            self._holders[lines] = np.where(foreign & dirty, me, holders | me)
            self._dirty[lines] = dirty & ~foreign
            self._toucher[lines] = self._node
        for lines in touched.writes:
            self._holders[lines] = me
            self._dirty[lines] = True
            self._toucher[lines] = self._node


class _Walk:
    """What a node's slices touch, as lines of the arena."""

    def __init__(
        self, graph: Graph, node: Node, schedule: Schedule, live: Liveness, offsets: Mapping[str, int]
    ) -> None:
        choice = schedule.choices[node.id]
        signature = signature_of(graph, node)
        self.node, self.stages = node, len(choice.stage_ns)
        self._signature, self._mode = signature.text, choice.mode
        self._lanes = schedule.lanes[node.id]
        touches = touches_of(op_named(node.op), signature, choice.mode, self.stages, choice.facts)
        self._parts = touches.stages
        self._places: dict[str, tuple[int, int]] = {}
        """operand -> first byte, bytes per element"""
        operands = [(f"in{i}", v) for i, v in enumerate(node.inputs)]
        operands += [(f"out{i}", v) for i, v in enumerate(node.outputs)]
        operands += [(f"up{i}", v) for i, v in enumerate(node.updates)]
        for name, value in operands:
            self._places[name] = (offsets[live.root[value]], graph.value[value].type.dtype.itemsize)
        self._scratch: dict[str, tuple[int, int, int]] = {}
        """part -> first byte, bytes, shares"""
        block = offsets.get(scratch_id(schedule.program, node.id), 0)
        for name, at, size in touches.scratch:
            shares = max((int(p.hi.max()) for ps in self._parts for p in ps if p.operand == name), default=1)
            self._scratch[name] = (block + at, size, shares)

    def touches(self, stage: int) -> list[_Touched]:
        found = [_Touched(lane, [], []) for lane in self._lanes]
        for part in self._parts[stage]:
            for row, index in enumerate(part.slices.tolist()):
                to = found[index].writes if part.write else found[index].reads
                to.append(self._lines(part, row))
        return found

    def weighted(self, stages: Sequence[Crossed], costs: CostTable) -> tuple[Crossed, ...]:
        """With what a byte out of the caches costs the kernel, against the loop behind `costs.stream_ns`."""
        entry = next((e for e in costs.modes(self._signature) if e.mode == self._mode), None)
        if entry is None or not costs.stream_ns:
            return tuple(stages)
        found = []
        for stage, crossed in enumerate(stages):
            size = max((sum(map(_count, (*t.reads, *t.writes))) for t in self.touches(stage)), default=0) * LINE
            more = (entry.cold_ns[stage] - entry.warm_ns[stage]) / max(1, size) * 1024
            factor = min(max(1.0, more / costs.stream_ns), MOST_STRAINED)
            found.append(crossed.model_copy(update={"factor": round(factor, 2)}))
        return tuple(found)

    def _lines(self, part: Part, row: int) -> Lines:
        lo, hi, width = int(part.lo[row]), int(part.hi[row]), int(part.width[row])
        if part.operand in self._scratch:
            at, size, shares = self._scratch[part.operand]
            return slice((at + size * lo // shares) // LINE, -(-(at + size * hi // shares) // LINE))
        at, itemsize = self._places[part.operand]
        first, behind = int(part.col_lo[row]), int(part.col_hi[row])
        if width == 1 or behind - first == width:
            return slice((at + lo * itemsize) // LINE, -(-(at + hi * itemsize) // LINE))
        starts = at + np.arange(lo, hi, width, dtype=np.int64) * itemsize
        ends = starts + (behind - first) * itemsize
        begin, stop = starts // LINE, -(-ends // LINE)
        steps = np.arange(int((stop - begin).max()), dtype=np.int64)
        lines = begin[:, None] + steps[None, :]
        unique: np.ndarray[Any, np.dtype[np.int64]] = np.unique(lines[lines < stop[:, None]])
        return unique
