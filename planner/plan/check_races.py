"""Part of `check`: tensors that take turns on the same bytes.

Let X and Y be different tensors of a program whose bytes overlap. "X before Y" holds when every access to X happens
before every write to Y that overlaps it. With check_dependencies.py (every read of Y comes after the writes of the
bytes that it reads) nothing can then touch X's bytes once Y's are there, and Y's writes cannot come too early. The
plan is safe when for every such pair one of the two directions holds.

Not all pairs need a look. Tensors are visited by their first access in one legal order, and every byte remembers its
occupants. A newcomer Z is compared with the occupants of its bytes; an occupant X that is before Z, on bytes that Z
writes completely, is forgotten there. Suppose a later tensor A overlaps X on such a byte: x in X happens before the
write z of that byte, z happens before the write a in A (Z was compared with A, or forgotten for the same reason), so
x happens before a. Nothing is forgotten for a newcomer that is not written completely. Should a newcomer come
*before* an occupant (its first access is late, but on bytes that the two do not share), it says nothing about those
forgotten earlier, so it is compared with all that came earlier, and the occupant stays. Every byte has one occupant
nearly all the time, so the number of comparisons is proportional to the number of tensors.

What must survive to the end (a program's outputs, what the plan keeps) has a last access after everything. In-place
results: a slice may read its part of X and write its part of Y over it, if the op says so and the plan declares it;
different slices must be ordered as everywhere.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.graph.model import Graph
from planner.plan.check_dependencies import PAIRS_AT_ONCE
from planner.plan.check_memory import inplace_inputs, protected
from planner.plan.check_order import BoolArray, IntArray, Order
from planner.plan.check_structure import Slices
from planner.plan.check_touches import Touches, survivors
from planner.plan.findings import Report
from planner.plan.schema import Placement, Plan

_END = np.iinfo(np.int64).max


@dataclass
class _Occupants:
    """Disjoint byte ranges of a pool in order, each with the tensors that were there last."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    who: list[tuple[int, ...]] = field(default_factory=list)

    def replace(self, lo: int, hi: int, newcomer: int, kept: Mapping[int, bool]) -> None:
        """Put the newcomer on [lo, hi) beside those of the present occupants that are `kept`."""
        first = max(0, bisect_right(self.starts, lo) - 1)
        if first < len(self.starts) and self.ends[first] <= lo:
            first += 1
        last = first
        pieces: list[tuple[int, int, tuple[int, ...]]] = []
        position = lo
        while last < len(self.starts) and self.starts[last] < hi:
            start, end, who = self.starts[last], self.ends[last], self.who[last]
            if start < lo:
                pieces.append((start, lo, who))
            stay = tuple(t for t in who if kept[t])
            inner_lo, inner_hi = max(start, lo), min(end, hi)
            if stay:
                if position < inner_lo:
                    pieces.append((position, inner_lo, (newcomer,)))
                pieces.append((inner_lo, inner_hi, (*stay, newcomer)))
                position = inner_hi
            if hi < end:
                if position < hi:
                    pieces.append((position, hi, (newcomer,)))
                    position = hi
                pieces.append((hi, end, who))
            last += 1
        if position < hi:
            pieces.append((position, hi, (newcomer,)))
        self.starts[first:last] = [p[0] for p in pieces]
        self.ends[first:last] = [p[1] for p in pieces]
        self.who[first:last] = [p[2] for p in pieces]

    def meeting(self, lo: int, hi: int) -> list[int]:
        """Tensors that occupy some of [lo, hi), each once."""
        at = max(0, bisect_right(self.starts, lo) - 1)
        found: dict[int, None] = {}
        while at < len(self.starts) and self.starts[at] < hi:
            if self.ends[at] > lo:
                found.update(dict.fromkeys(self.who[at]))
            at += 1
        return list(found)


class Races:
    """Compares the tensors of one program."""

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        slices: Slices,
        roots: Mapping[str, str],
        placements: Mapping[str, Placement],
        touched: Touches,
        order: Order,
    ) -> None:
        self._slices, self._placements, self._roots = slices, placements, roots
        self._touched, self._order = touched, order
        tensors = touched.tensors
        self._pool = [placements[t.value].pool if t.value else plan.pools[0].name for t in tensors]
        self._base = np.array([placements[t.value].offset if t.value else t.offset for t in tensors], np.int64)
        keep = {roots.get(v, v) for v in protected(graph)}
        self._outputs = survivors(slices.program, plan, roots)
        self._protected = [t.value in keep for t in tensors]
        self._producer = {v: (p, i) for p in slices.nodes for i, v in enumerate(p.node.outputs)}
        self._span()
        self._summarise()

    def _span(self) -> None:
        """Absolute bytes of every access. How the shares of a scratch part lie is the op's business, so an access
        to any counts as one to the whole part, and as a write: reading a share that was never written matters."""
        touched = self._touched
        base = self._base[touched.tensor]
        size = np.array([t.bytes for t in touched.tensors], np.int64)[touched.tensor]
        scratch = np.array([not t.value for t in touched.tensors], bool)[touched.tensor]
        self._lo = np.where(scratch, base, base + touched.lo)
        self._hi = np.where(scratch, base + size, base + touched.hi)
        self._whole = scratch

    def _summarise(self) -> None:
        """Per tensor: its writes (all accesses where it is not written completely, so that nothing is missed), the
        last access per lane, and what is certain to be over when any of the writes starts."""
        touched, order = self._touched, self._order
        count, lanes = len(touched.tensors), order.clock.shape[1]
        self._covered = [bool(t.part) or _covered(touched, i) for i, t in enumerate(touched.tensors)]
        self._last = np.full((count, lanes), -1, np.int64)
        np.maximum.at(self._last, (touched.tensor, order.lane[touched.slice]), order.position[touched.slice])
        self._writes: list[IntArray] = []
        self._known = np.zeros((count, lanes), np.int64)
        for number, tensor in enumerate(touched.tensors):
            every = touched.of(number)
            writes = every[touched.write[every]] if tensor.value and self._covered[number] else every
            self._writes.append(writes)
            if len(writes):
                self._known[number] = order.clock[touched.slice[writes]].min(axis=0)
            if tensor.value in self._outputs:
                self._last[number] = _END

    def run(self, report: Report) -> None:
        """SP1423 to SP1425 for tensors that are in each other's way."""
        touched = self._touched
        occupants: dict[str, _Occupants] = {}
        visited: list[int] = []
        first = np.full(len(touched.tensors), _END)
        np.minimum.at(first, touched.tensor, self._order.rank[touched.slice])
        for number in np.argsort(first, kind="stable").tolist():
            every = touched.of(number)
            if self._protected[number] or not len(every):
                continue
            lo, hi = int(self._lo[every].min()), int(self._hi[every].max())
            held = occupants.setdefault(self._pool[number], _Occupants())
            kept: dict[int, bool] = {}
            reversed_ = False
            for other in held.meeting(lo, hi):
                if self._before(other, number):
                    kept[other] = not self._covered[number]
                else:
                    kept[other] = self._before(number, other)
                    reversed_ |= kept[other]
                    if not kept[other]:
                        self._report(other, number, report)
            if reversed_:
                for other in visited:
                    apart = self._pool[other] != self._pool[number] or other in kept
                    if not (apart or self._before(other, number) or self._before(number, other)):
                        self._report(other, number, report)
            held.replace(lo, hi, number, kept)
            visited.append(number)

    def _before(self, first: int, second: int) -> bool:
        if bool((self._last[first] < self._known[second]).all()):
            return True
        return self._conflict(first, second) is None

    def _conflict(self, first: int, second: int) -> tuple[int, int] | None:
        """An access to `first` and a write to `second` that overlap without being ordered; None if there are none."""
        every, writes = self._touched.of(first), self._writes[second]
        at_once = max(1, PAIRS_AT_ONCE // max(1, len(writes)))
        for begin in range(0, len(every), at_once):
            x, w = every[begin : begin + at_once, None], writes[None, :]
            bad = self._unordered(first, second, x, w)
            if bad.any():
                row, column = divmod(int(np.argmax(bad)), len(writes))
                return int(x[row, 0]), int(writes[column])
        return None

    def _unordered(self, first: int, second: int, x: IntArray, w: IntArray) -> BoolArray:
        touched, order = self._touched, self._order
        overlap: BoolArray = (self._lo[x] < self._hi[w]) & (self._lo[w] < self._hi[x])
        if self._base[first] == self._base[second]:
            overlap &= self._whole[x] | self._whole[w] | ~touched.columns_apart(x, w)
        if touched.tensors[first].value in self._outputs:
            return overlap
        ordered = order.before(touched.slice[x], touched.slice[w])
        sources = self._inplace(first, second)
        if sources:
            ordered |= (touched.slice[x] == touched.slice[w]) & np.isin(touched.source[x], sources)
        return overlap & ~ordered

    def _inplace(self, first: int, second: int) -> tuple[int, ...]:
        """The operands k through which a slice that writes `second` may read `first` on the same bytes."""
        below, above = self._touched.tensors[first].value, self._touched.tensors[second].value
        if not below or above not in self._producer:
            return ()
        shares = self._placements[above].shares
        if not shares or self._roots.get(shares) != below:
            return ()
        planned, output = self._producer[above]
        inputs = planned.node.inputs
        return tuple(
            i for i in inplace_inputs(planned, output, self._placements[above]) if self._roots[inputs[i]] == below
        )

    def _report(self, first: int, second: int, report: Report) -> None:
        touched, names = self._touched, self._slices.names
        found = self._conflict(first, second)
        if found is None:
            return
        earlier, later = found
        lo, hi = max(self._lo[earlier], self._lo[later]), min(self._hi[earlier], self._hi[later])
        below, above = touched.tensors[first], touched.tensors[second]
        one, other = int(touched.slice[earlier]), int(touched.slice[later])
        user, writer = names[one], names[other]
        missing = self._order.missing(names, one, other)
        where = f"bytes {lo} to {hi} of pool {self._pool[first]}"
        program = self._slices.plan.name
        if below.value in self._outputs:
            message = f"{writer} writes {above.text()} over {below.value}, which must survive ({where})"
            report.add("SP1424", program, message)
        elif self._inplace(first, second):
            message = f"{writer} writes {above.text()} in place of {below.text()} {missing} ({where})"
            report.add("SP1425", program, message)
        elif user == writer:
            report.add("SP1423", program, f"{writer} uses {below.text()} and {above.text()} on the same {where}")
        else:
            message = f"{writer} touches {above.text()} {missing}, which uses {below.text()}, on {where}"
            report.add("SP1423", program, message)


def _covered(touched: Touches, number: int) -> bool:
    """Whether the writes of a value together fill all its bytes."""
    every = touched.of(number)
    every = every[touched.write[every]]
    spans = [
        (lo, hi)
        for lo, hi, width in zip(
            touched.lo[every].tolist(), touched.hi[every].tolist(), touched.width[every].tolist(), strict=True
        )
        if not width
    ]
    spans += _full_lines(touched, every[touched.width[every] > 0])
    reached = 0
    for lo, hi in sorted(spans):
        if lo > reached:
            return False
        reached = max(reached, hi)
    return reached >= touched.tensors[number].bytes


def _full_lines(touched: Touches, strided: IntArray) -> list[tuple[int, int]]:
    """Rectangles over the same lines whose columns together fill the lines are as good as one span."""
    groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
    for i in strided.tolist():
        width, left, right = int(touched.width[i]), int(touched.col_lo[i]), int(touched.col_hi[i])
        rows = (width, int(touched.lo[i]) - left, int(touched.hi[i]) - right + width)
        groups.setdefault(rows, []).append((left, right))
    found = []
    for (width, lo, hi), columns in groups.items():
        reached = 0
        for left, right in sorted(columns):
            if left <= reached:
                reached = max(reached, right)
        if reached >= width:
            found.append((lo, hi))
    return found
