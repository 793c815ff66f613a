"""What the slices of a stage touch, as arrays; and what has happened to blocks of bytes so far.

A slice must come after every earlier slice that touched an overlapping part of the same bytes when one of the two
writes: a value's producer, the readers of what is overwritten in place, and the last users of bytes that a new block
takes over. `Arena` answers this for a whole stage at a time.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from planner.graph.model import Graph
from planner.ops.base import Access, Facts, Mode, Op, ScratchPart, Signature, scratch_offsets
from planner.ops.device import running
from planner.solve.clocks import Ints, Longs, Stage
from planner.solve.liveness import Liveness

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class Part(NamedTuple):
    """Accesses to one operand, at most one per slice; arrays are parallel. Elements, or shares of a scratch part."""

    operand: str
    write: bool
    slices: Longs
    lo: Longs
    hi: Longs
    """Smallest contiguous span [lo, hi) around each access."""
    col_lo: Longs
    col_hi: Longs
    width: Longs
    """Columns [col_lo, col_hi) of lines of `width` elements; width 1: the whole span."""
    together: tuple[int, int] | None
    """The elements that all slices touch, where those are in one piece."""
    everyone: bool
    """All slices of the stage touch it."""


class Touches(NamedTuple):
    """What a node in one mode touches."""

    stages: tuple[tuple[Part, ...], ...]
    scratch: tuple[tuple[str, int, int], ...]
    """(name, first byte, size) of every part of its scratch block."""


def touches_of(op: Op, signature: Signature, mode: Mode, stages: int, facts: Facts) -> Touches:
    """What all slices of all stages touch. Empty accesses are left out."""
    return _touches(op, signature, mode, stages, tuple(sorted(facts.items())))


@lru_cache(maxsize=2**12)
def _touches(op: Op, signature: Signature, mode: Mode, stages: int, listed: tuple[tuple[str, int], ...]) -> Touches:
    """The same for every candidate that is planned, and for nodes alike."""
    facts = dict(listed)
    runs = running(op, mode)
    parts: Sequence[ScratchPart] = runs.scratch(signature, mode, facts)
    starts = scratch_offsets(parts)
    return Touches(
        tuple(_stage_parts(runs, signature, mode, stage, facts) for stage in range(stages)),
        tuple((p.name, starts[p.name], p.bytes) for p in parts if p.bytes),
    )


def _stage_parts(op: Op, signature: Signature, mode: Mode, stage: int, facts: Facts) -> tuple[Part, ...]:
    grouped: dict[tuple[str, bool, int], list[tuple[int, Access]]] = {}
    for index in range(mode.slices):
        times: dict[tuple[str, bool], int] = {}
        for access in op.accesses(signature, mode, stage, index, facts):
            if access.rows[0] >= access.rows[1] or access.cols[0] >= access.cols[1]:
                continue
            key = (access.operand, access.write)
            times[key] = times.get(key, 0) + 1
            grouped.setdefault((*key, times[key]), []).append((index, access))
    parts = []
    for (operand, write, _), found in grouped.items():
        hulls = [a.hull for _, a in found]
        columns = (
            [i for i, _ in found],
            [lo for lo, _ in hulls],
            [hi for _, hi in hulls],
            [a.cols[0] for _, a in found],
            [a.cols[1] for _, a in found],
            [a.width for _, a in found],
        )
        slices, lo, hi, col_lo, col_hi, width = (np.array(c, np.int64) for c in columns)
        union = _union([(lo, hi)]) if (width == 1).all() else []
        together = union[0] if len(union) == 1 else None
        everyone = len(found) == mode.slices
        parts.append(Part(operand, write, slices, lo, hi, col_lo, col_hi, width, together, everyone))
    return tuple(parts)


class _Record(NamedTuple):
    """One part, once its slices have places."""

    itemsize: int
    part: Part
    stage: Stage

    def spots(self) -> tuple[Longs, Ints]:
        """Lanes, and position + 1 there, of the slices that touch it."""
        stage, part = self.stage, self.part
        return (stage.lanes, stage.ends) if part.everyone else (stage.lanes[part.slices], stage.ends[part.slices])

    def finished(self, certain: Sequence[int]) -> bool:
        """`certain`: as for `Arena.needed`."""
        if all(certain[lane] >= end for lane, end in self.stage.places):
            return True
        places = self.stage.places
        return not self.part.everyone and all(certain[places[i][0]] >= places[i][1] for i in self.part.slices.tolist())


@dataclass(slots=True)
class Block:
    """What has happened to one block of bytes [lo, hi) so far."""

    lo: int
    hi: int
    history: list[_Record] = field(default_factory=list)
    inherited: Longs | None = None
    """Rows (lane, end, first byte, byte behind): what used the bytes before this block."""
    legacy: Longs | None = None
    """Such rows for who takes over its bytes, once somebody asked and until it is touched again."""

    def reached(self, part: Part, itemsize: int) -> tuple[Longs, Longs]:
        """First byte and byte behind of every access. Shares of scratch (itemsize 0) have no known bytes: any of them
        may reach the whole part."""
        if itemsize:
            return self.lo + part.lo * itemsize, self.lo + part.hi * itemsize
        return np.full(len(part.lo), self.lo), np.full(len(part.lo), self.hi)


Touched = tuple[Block, Part, int]
"""What a stage touches of a block, and the bytes of an element there; 0: shares of scratch."""


class Arena:
    """Which block holds which bytes now."""

    def __init__(self, graph: Graph, live: Liveness, offsets: Mapping[str, int]) -> None:
        self._graph, self._live, self._offsets = graph, live, offsets
        self._blocks: dict[str, Block] = {}
        self._known: dict[tuple[int, int], tuple[Part, Part, Bools]] = {}
        self._starts: list[int] = []
        self._held: list[tuple[int, int, Block]] = []
        """Disjoint (lo, hi, block), sorted, with their starts: the last block that took each byte."""

    def block(self, value: str) -> Block:
        """The block that holds a value's bytes; it takes them over at its first use."""
        root = self._live.root[value]
        if root not in self._blocks:
            lo = self._offsets[root]
            self._blocks[root] = self._open(lo, lo + self._graph.value[root].type.bytes)
        return self._blocks[root]

    def open_scratch(self, block: str, parts: Sequence[tuple[str, int, int]]) -> dict[str, Block]:
        """A node's scratch parts (name, first byte, size) by name, each a block that takes over its bytes."""
        if not parts:
            return {}
        base = self._offsets[block]
        return {name: self._open(base + at, base + at + size) for name, at, size in parts}

    def needed(self, touched: Sequence[Touched], certain: Sequence[int], slices: int) -> Ints | None:
        """(slices, lanes): position + 1 of the last entry there that a slice must wait for; 0 for none. None where
        no slice must wait for any. `certain`: per lane, how many entries are finished anyway."""
        found = None
        for block, part, itemsize in touched:
            for lanes, ends in self._needs(block, part, itemsize, certain):
                if found is None:
                    found = np.zeros((slices, len(certain)), np.int32)
                if part.everyone:
                    found[:, lanes] = np.maximum(found[:, lanes], ends)
                else:
                    at = (part.slices[:, None], lanes)
                    found[at] = np.maximum(found[at], ends)
        return found

    def _needs(
        self, block: Block, part: Part, itemsize: int, certain: Sequence[int]
    ) -> Iterator[tuple[Longs, Longs | Ints]]:
        """Lanes, and (slices of the part, lanes) what each must wait for there."""
        if part.write and block.inherited is not None:
            where, ends, first, behind = block.inherited[:, block.inherited[1] > np.array(certain)[block.inherited[0]]]
            if len(where):
                lo, hi = block.reached(part, itemsize)
                overlap = (first < hi[:, None]) & (lo[:, None] < behind)
                begins = np.append(0, np.flatnonzero(where[1:] != where[:-1]) + 1)  # rows are sorted by lane
                yield where[begins], np.maximum.reduceat(overlap * ends, begins, axis=1)
        for record in block.history:
            if not (part.write or record.part.write) or record.finished(certain):
                continue
            if itemsize == record.itemsize:
                overlap = self._meet(part, record.part)
            else:  # elements of different sizes are compared by bytes
                (lo, hi), (first, behind) = block.reached(part, itemsize), block.reached(record.part, record.itemsize)
                overlap = (first < hi[:, None]) & (lo[:, None] < behind)
            lanes, ends = record.spots()
            yield lanes, overlap * ends

    def _meet(self, part: Part, earlier: Part) -> Bools:
        """As `_overlap`; nodes of one signature share their parts, so the same two meet again and again."""
        key = (id(part), id(earlier))
        if key not in self._known:
            self._known[key] = (part, earlier, _overlap(part, earlier))
        return self._known[key][2]

    def record(self, touched: Touched, stage: Stage) -> None:
        """The part's slices have their places: later ones will wait for them.

        A stage that writes the whole block has waited for all that came before it, and whoever touches the block
        later waits for it: what came before is forgotten.
        """
        block, part, itemsize = touched
        if part.write and itemsize and _fills(part, block, itemsize):
            block.history = [r for r in block.history if r.stage is stage]
            block.inherited = None
        block.history.append(_Record(itemsize, part, stage))
        block.legacy = None

    def _open(self, lo: int, hi: int) -> Block:
        """A new block over [lo, hi): it inherits what happened to those bytes under their previous holders."""
        new = Block(lo, hi)
        first = max(0, bisect_right(self._starts, lo) - 1)
        if first < len(self._held) and self._held[first][1] <= lo:
            first += 1
        last = first
        kept: list[tuple[int, int, Block]] = []
        inherited: list[Longs] = []
        while last < len(self._held) and self._held[last][0] < hi:
            start, end, old = self._held[last]
            legacy = _legacy(old, max(lo, start), min(hi, end))
            if legacy.shape[1]:
                inherited.append(legacy)
            if start < lo:
                kept.append((start, lo, old))
            if hi < end:
                kept.append((hi, end, old))
            last += 1
        if inherited:
            new.inherited = _latest(np.concatenate(inherited, axis=1))
        pieces = sorted([*kept, (lo, hi, new)], key=lambda h: h[0])
        self._held[first:last] = pieces
        self._starts[first:last] = [p[0] for p in pieces]
        return new


def _fills(part: Part, block: Block, itemsize: int) -> bool:
    """Whether the part's slices together touch every byte of the block."""
    span = part.together
    return span is not None and (span[0], span[1] * itemsize) == (0, block.hi - block.lo)


def _overlap(part: Part, earlier: Part) -> Bools:
    """(slices of part, slices of the earlier one): may both touch the same element? By spans, and by columns where
    both have lines of one width."""
    found: Bools = (part.lo[:, None] < earlier.hi[None, :]) & (earlier.lo[None, :] < part.hi[:, None])
    if part.width[0] > 1 and earlier.width[0] > 1:
        same = (part.width[:, None] == earlier.width[None, :]) & (part.width[:, None] > 1)
        meet = (part.col_lo[:, None] < earlier.col_hi[None, :]) & (earlier.col_lo[None, :] < part.col_hi[:, None])
        found &= ~same | meet
    return found


def _latest(rows: Longs) -> Longs:
    """Of rows with the same lane and bytes only the last: on one lane it implies those before it."""
    order = np.lexsort((rows[1], rows[3], rows[2], rows[0]))
    rows = rows[:, order]
    same = (rows[0, 1:] == rows[0, :-1]) & (rows[2, 1:] == rows[2, :-1]) & (rows[3, 1:] == rows[3, :-1])
    return rows[:, np.append(~same, True)]


def _legacy(block: Block, lo: int, hi: int) -> Longs:
    """Rows (lane, end, first byte, byte behind) that whoever takes over the bytes [lo, hi) must wait for: all that
    touched them, and what the block inherited itself, except where it was overwritten since (the writer waited)."""
    if block.legacy is None:
        columns = [(*r.spots(), *block.reached(r.part, r.itemsize)) for r in block.history]
        if block.inherited is not None:
            columns.append(tuple(_not_overwritten(block)))
        block.legacy = np.empty((4, sum(len(lanes) for lanes, *_ in columns)), np.int64)
        begin = 0
        for column in columns:
            end = begin + len(column[0])
            for row, numbers in zip(block.legacy, column, strict=True):
                row[begin:end] = numbers
            begin = end
    rows = block.legacy
    if lo > block.lo or hi < block.hi:
        rows = rows.copy()
        rows[2], rows[3] = np.maximum(rows[2], lo), np.minimum(rows[3], hi)
        rows = rows[:, rows[2] < rows[3]]
    return rows


def _not_overwritten(block: Block) -> Longs:
    written = _union([block.reached(r.part, r.itemsize) for r in block.history if r.part.write])
    rows = block.inherited
    assert rows is not None
    for a, b in written:
        # What sticks out of [a, b) on either side is left.
        before, behind = rows.copy(), rows.copy()
        before[3] = np.minimum(before[3], a)
        behind[2] = np.maximum(behind[2], b)
        rows = np.concatenate((before[:, before[2] < before[3]], behind[:, behind[2] < behind[3]]), axis=1)
        if not rows.shape[1]:
            break
    return rows


def _union(spans: Sequence[tuple[Longs, Longs]]) -> list[tuple[int, int]]:
    """Disjoint intervals, in order."""
    if not spans:
        return []
    lo, hi = np.concatenate([s[0] for s in spans]), np.concatenate([s[1] for s in spans])
    order = np.argsort(lo, kind="stable")
    lo, reached = lo[order], np.maximum.accumulate(hi[order])
    breaks = np.flatnonzero(lo[1:] > reached[:-1]) + 1
    begins = np.append(0, breaks)
    return list(zip(lo[begins].tolist(), reached[np.append(breaks, len(lo)) - 1].tolist(), strict=True))
