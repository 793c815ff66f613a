"""Pass *sync*: the waits that make a schedule right under every timing.

Slices are visited in schedule order with everything they read and write. A slice must wait for every earlier slice
that touched an overlapping part of the same bytes when one of the two writes: a value's producer, the readers of
what is overwritten in place, and the last users of bytes that a new block takes over. Vector clocks then drop every
wait that lane order or another wait already implies (transitive reduction).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from planner.graph.model import Graph
from planner.ops.base import Access, op_named, scratch_offsets
from planner.ops.signature import signature_of
from planner.plan.schema import Entry, slice_name
from planner.solve.liveness import Liveness, scratch_id
from planner.solve.schedule import Schedule


@dataclass(slots=True)
class _Block:
    """What has happened to one block of bytes so far."""

    lo: int
    hi: int
    history: list[tuple[int, int, bool, int, int, Access]] = field(default_factory=list)
    """(slice, lane, writes, first byte, byte behind the last one, access) in schedule order."""
    inherited: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(slice, lane, first byte, byte behind) of the blocks that held these bytes before."""


class _Clocks:
    """Which entries of every lane are known to be finished when a slice starts."""

    def __init__(self, lanes: int) -> None:
        self.lane_of: list[int] = []
        self.position: list[int] = []
        self.known: list[tuple[int, ...]] = []
        self.latest: list[tuple[int, ...]] = [(0,) * lanes for _ in range(lanes)]
        self.length = [0] * lanes

    def add(self, lane: int, needed: Iterable[int]) -> list[int]:
        """Append a slice to a lane; returns the slices it has to wait for, by lane."""
        clock = list(self.latest[lane])
        position, lane_of = self.position, self.lane_of
        missing: dict[int, int] = {}
        """lane -> the latest needed slice there that is not known to be finished"""
        for other in needed:
            at = lane_of[other]
            if (
                at != lane
                and position[other] >= clock[at]
                and (at not in missing or position[other] > position[missing[at]])
            ):
                missing[at] = other
        # A wait is superfluous when the knowledge that comes with another wait covers it.
        heard = list(clock)
        for other in missing.values():
            heard = [a if a > b else b for a, b in zip(heard, self.known[other], strict=True)]
        chosen = [other for at, other in sorted(missing.items()) if position[other] >= heard[at]]
        for at, other in missing.items():
            heard[at] = max(heard[at], position[other] + 1)
        lane_of.append(lane)
        position.append(self.length[lane])
        self.known.append(tuple(heard))
        self.length[lane] += 1
        heard[lane] = self.length[lane]
        self.latest[lane] = tuple(heard)
        return chosen


def lane_programs(
    graph: Graph, schedule: Schedule, live: Liveness, offsets: Mapping[str, int], lanes: int
) -> tuple[tuple[Entry, ...], ...]:
    """What every lane runs, stage after stage of node after node, with the waits that are needed."""
    clocks = _Clocks(lanes)
    arena = _Arena(graph, live, offsets)
    names: list[str] = []
    entries: list[list[Entry]] = [[] for _ in range(lanes)]
    for node in schedule.order:
        choice, places = schedule.choices[node.id], schedule.lanes[node.id]
        if not choice.stage_ns:
            continue
        signature, op = signature_of(graph, node), op_named(node.op)
        operands = {f"in{i}": v for i, v in enumerate(node.inputs)}
        operands |= {f"out{i}": v for i, v in enumerate(node.outputs)}
        operands |= {f"up{i}": v for i, v in enumerate(node.updates)}
        parts = op.scratch(signature, choice.mode, choice.facts)
        scratch = arena.open_scratch(
            scratch_id(schedule.program, node.id), scratch_offsets(parts), {p.name: p.bytes for p in parts}
        )
        for stage in range(len(choice.stage_ns)):
            for index, lane in enumerate(places):
                touched = op.accesses(signature, choice.mode, stage, index, choice.facts)
                number = len(names)
                needed: set[int] = set()
                for access in touched:
                    value = operands.get(access.operand)
                    if value is None:
                        arena.touch(scratch[access.operand], access, 0, number, lane, needed)
                    else:
                        itemsize = graph.value[value].type.dtype.itemsize
                        arena.touch(arena.block(value), access, itemsize, number, lane, needed)
                waits = clocks.add(lane, needed)
                names.append(slice_name(node.id, stage, index))
                entries[lane].append(Entry(run=names[-1], wait=tuple(names[w] for w in waits)))
    return tuple(map(tuple, entries))


class _Arena:
    """Which block holds which bytes now."""

    def __init__(self, graph: Graph, live: Liveness, offsets: Mapping[str, int]) -> None:
        self._graph, self._live, self._offsets = graph, live, offsets
        self._blocks: dict[str, _Block] = {}
        self._held: list[tuple[int, int, _Block]] = []
        """Disjoint (lo, hi, block), sorted: the last block that took each byte."""

    def block(self, value: str) -> _Block:
        root = self._live.root[value]
        if root not in self._blocks:
            lo = self._offsets[root]
            self._blocks[root] = self._open(lo, lo + self._graph.value[root].type.bytes)
        return self._blocks[root]

    def open_scratch(self, block: str, starts: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, _Block]:
        if not starts:
            return {}
        base = self._offsets[block]
        return {name: self._open(base + at, base + at + sizes[name]) for name, at in starts.items() if sizes[name]}

    def _open(self, lo: int, hi: int) -> _Block:
        """A new block over [lo, hi): it inherits what happened to those bytes under their previous holders."""
        new = _Block(lo, hi)
        first = _first_reaching(self._held, lo)
        last = first
        kept: list[tuple[int, int, _Block]] = []
        latest: dict[tuple[int, int, int], int] = {}
        """(lane, first byte, byte behind) -> the last slice there: on one lane it implies those before it"""
        while last < len(self._held) and self._held[last][0] < hi:
            start, end, old = self._held[last]
            reach = (max(lo, start), min(hi, end))
            for number, lane, a, b in _legacy(old):
                if a < reach[1] and reach[0] < b:
                    key = (lane, max(a, reach[0]), min(b, reach[1]))
                    latest[key] = max(number, latest.get(key, -1))
            if start < lo:
                kept.append((start, lo, old))
            if hi < end:
                kept.append((hi, end, old))
            last += 1
        new.inherited = [(number, *key) for key, number in latest.items()]
        self._held[first:last] = sorted([*kept, (lo, hi, new)], key=lambda h: h[0])
        return new

    @staticmethod
    def touch(block: _Block, access: Access, itemsize: int, number: int, lane: int, needed: set[int]) -> None:
        """Record an access and add the slices of other lanes that must come before it to `needed`."""
        if itemsize:
            first, behind = access.hull
            lo, hi = block.lo + first * itemsize, block.lo + behind * itemsize
        else:  # scratch shares have no known bytes: any of them may reach the whole part
            lo, hi = block.lo, block.hi
        write = access.write
        if write:
            needed.update(s for s, where, a, b in block.inherited if where != lane and a < hi and lo < b)
        for other, where, wrote, a, b, earlier in block.history:
            if where != lane and (write or wrote) and a < hi and lo < b and access.overlaps(earlier):
                needed.add(other)
        block.history.append((number, lane, write, lo, hi, access))


def _legacy(block: _Block) -> Iterator[tuple[int, int, int, int]]:
    """(slice, lane, first byte, byte behind) that whoever takes over the block's bytes must wait for: everything that
    touched it, and what it inherited itself, except where it was overwritten since (the writer waited for that)."""
    for number, lane, _, a, b, _ in block.history:
        yield number, lane, a, b
    if not block.inherited:
        return
    written: list[list[int]] = []
    for a, b in sorted((a, b) for _, _, write, a, b, _ in block.history if write):
        if written and a <= written[-1][1]:
            written[-1][1] = max(written[-1][1], b)
        else:
            written.append([a, b])
    for number, lane, lo, hi in block.inherited:
        for a, b in written:
            if lo < min(a, hi):
                yield number, lane, lo, min(a, hi)
            lo = max(lo, b)
        if lo < hi:
            yield number, lane, lo, hi


def _first_reaching(held: Sequence[tuple[int, int, _Block]], lo: int) -> int:
    """Index of the first held interval that ends behind `lo` (binary search)."""
    low, high = 0, len(held)
    while low < high:
        middle = (low + high) // 2
        if held[middle][1] <= lo:
            low = middle + 1
        else:
            high = middle
    return low
