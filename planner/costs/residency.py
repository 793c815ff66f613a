"""How warm a node's operands are in its place in the step.

A cost entry has two ends: all operands in cache, none in cache. Which of them holds follows from how many other bytes
the step touches between two uses of an operand's bytes (the reuse distance) against the size of the shared cache.

Bytes, not values: one that is made where another has just died is warm before it is written. Example, a cache of 32 MiB
and gradients of 640 KiB: of `d1 = ...; s1 = s0 + d1; d2 = ...; s2 = s1 + d2; ...` each d takes the bytes of the one
before, each s those of its operand, and all of it stays in the cache however often this goes on.
"""

from collections.abc import Container, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from planner.costs.table import CostEntry
from planner.graph.model import PERSISTENT, Graph, Node, Role
from planner.ops.base import Mode, op_named
from planner.ops.signature import signature_of

Ints = np.ndarray[Any, np.dtype[np.int64]]
Places = Mapping[str, tuple[int, int]]
"""value -> its first byte, and the one behind its last"""


def cold_fractions(graph: Graph, order: Sequence[Node], places: Places, cache_bytes: int) -> dict[str, float]:
    """node id -> share of its operands' bytes that have left the cache when the node starts, 0..1.

    The order is walked twice: a training loop repeats it, so what a step starts with is what the last one left. Of an
    operand from which indices pick rows only those rows count. The next step picks others: for the first node that
    uses them, the whole table would have to be in the cache. Views touch nothing.
    """
    found = dict.fromkeys((node.id for node in order), 0.0 if cache_bytes else 1.0)
    real = [n for n in order if op_named(n.op).alias(signature_of(graph, n)) is None]
    if not cache_bytes or not real:
        return found
    sizes = [_touched(graph, node) for node in real]
    arena, used = _Arena(places, sizes), set[str]()
    visits = []
    for node, touched in zip(real, sizes, strict=True):
        read = {v: touched[v] for v in node.reads}
        made = {v: size for v, size in touched.items() if v not in read}
        # What is read comes first: a result in the bytes of an operand finds it there.
        visits.append((arena.visit(read, used), arena.visit(made, used)))
        used.update(touched)
    last = np.full(len(arena.widths), -1, np.int64)
    for moment, visit in enumerate(visits):
        for part in visit:
            last[part.marks] = moment
    touched_at = np.zeros(2 * len(visits), np.int64)
    """moment -> bytes that were touched last then"""
    np.add.at(touched_at, last[last >= 0], arena.widths[last >= 0])
    horizon = 0
    for moment, (node, visit) in enumerate(zip(real, visits, strict=True), len(visits)):
        # From the horizon on, bytes touched at each moment or later: what is farther has left the cache for good.
        behind = touched_at[horizon:moment][::-1].cumsum()[::-1]
        forgotten = max(0, int(np.count_nonzero(behind >= cache_bytes)) - 1)
        horizon += forgotten
        since = np.concatenate((behind[forgotten + 1 :], (0, 0, cache_bytes)))
        """Bytes touched after each of these moments, the last one, and this one; at the end what has been forgotten."""
        cold = 0.0
        for part in visit:
            reach = since[np.maximum(last[part.pieces] - horizon, -1)] + part.reach
            cold += float(part.bytes @ np.minimum(np.maximum(reach * (2 / cache_bytes) - 1, 0.0), 1.0))
            np.subtract.at(touched_at, last[part.marks], arena.widths[part.marks])
            touched_at[moment] += part.marked
            last[part.marks] = moment
        found[node.id] = cold / max(1, sum(sizes[moment - len(visits)].values()))
    return found


class _Visit(NamedTuple):
    """What a node reads, or writes: pieces of the arena."""

    pieces: Ints
    bytes: Ints
    """Per piece: what the node touches of it."""
    reach: Ints
    """Per piece: bytes of its value that the cache would have to hold."""
    marks: Ints
    """The pieces that were touched, each once,"""
    marked: int
    """and their bytes."""


class _Arena:
    """The arena cut at every byte at which a value begins or ends. Rows that are picked of a value, wherever in it they
    lie, are a piece of their own, which whoever touches all of the value touches, too."""

    def __init__(self, places: Places, touched: Sequence[Mapping[str, int]]) -> None:
        ends = np.unique(np.array([at for place in places.values() for at in place] or [0], np.int64))
        cuts = np.searchsorted(ends, np.array(list(places.values()), np.int64).reshape(-1, 2)).tolist()
        self._pieces = {v: range(*cut) for v, cut in zip(places, cuts, strict=True)}
        self._size = {v: end - begin for v, (begin, end) in places.items()}
        self._rows: dict[str, int] = {}
        self._widths: list[int] = np.diff(ends).tolist()
        for value, size in (item for sizes in touched for item in sizes.items()):
            if size < self._size[value] and value not in self._rows:
                self._rows[value] = len(self._widths)
                self._widths.append(size)
        self.widths = np.array(self._widths, np.int64)

    def visit(self, sizes: Mapping[str, int], used: Container[str]) -> _Visit:
        """`sizes`: value -> bytes of it that are touched; `used`: the values that the step touched before."""
        pieces: list[int] = []
        touched: list[int] = []
        reach: list[int] = []
        marks: set[int] = set()
        for value, size in sizes.items():
            own, row = self._pieces[value], self._rows.get(value, -1)
            if size < self._size[value]:
                pieces.append(row)
                touched.append(size)
            else:
                pieces += own
                touched += self._widths[own.start : own.stop]
                marks.update(own)
            if row >= 0:
                marks.add(row)
            reach += [size if value in used else self._size[value]] * (len(pieces) - len(reach))
        unique = np.array(sorted(marks), np.int64)
        marked = sum(self._widths[piece] for piece in marks)
        return _Visit(
            np.array(pieces, np.int64), np.array(touched, np.int64), np.array(reach, np.int64), unique, marked
        )


def gone_before_read(
    graph: Graph, order: Sequence[Node], cold: Mapping[str, float], cache_bytes: int
) -> frozenset[str]:
    """Ids of the nodes whose results have all left the cache when somebody reads them, in this step or the next, and
    which cannot overwrite an operand that dies with them: their results may as well bypass the cache. Of an update the
    result is the parameter; its state nobody else reads. `cold`: what `cold_fractions` found; who finds all operands in
    the cache finds these results there, however often the bytes in between were touched.
    """
    readers: dict[str, list[int]] = {}
    for place, node in enumerate(order):
        for value in node.reads:
            readers.setdefault(value, []).append(place)
    touched = (0, *accumulate(sum(_touched(graph, node).values()) for node in order))
    """Of the nodes before each place."""
    outputs = {v for p in graph.programs for v in p.outputs}

    def gone(value: str, place: int) -> bool:
        """Whether it has left the cache when the next node reads it, if any does. What stays, the next step reads."""
        known = graph.value[value]
        later = next((p for p in readers.get(value, ()) if p > place), None)
        between = touched[-1 if later is None else later] - touched[place + 1]
        if later is None and known.role in PERSISTENT and value in readers:
            later = readers[value][0]
            between += touched[later]
        found_there = later is not None and cold[order[later].id] == 0
        return not found_there and known.type.bytes + between >= cache_bytes

    found = set()
    for place, node in enumerate(order):
        dying = {
            v
            for _, i in op_named(node.op).inplace(signature_of(graph, node), Mode("", "", 1))
            if readers[v := node.inputs[i]][-1] == place and graph.value[v].role is Role.ACTIVATION and v not in outputs
        }
        if not dying and all(gone(v, place) for v in node.outputs or node.updates[:1]):
            found.add(node.id)
    return frozenset(found)


def _touched(graph: Graph, node: Node) -> dict[str, int]:
    """value -> bytes of it that the node reads or writes."""
    sizes = {v: int(graph.value[v].type.bytes) for v in (*node.reads, *node.writes)}
    operands = {f"in{i}": v for i, v in enumerate(node.inputs)} | {f"up{i}": v for i, v in enumerate(node.updates)}
    picked = op_named(node.op).picked(signature_of(graph, node))
    return sizes | {operands[name]: size for name, size in picked.items()}


def stage_times(entry: CostEntry, cold: float) -> tuple[int, ...]:
    """Predicted ns of each stage with the fraction `cold` of the operands out of cache."""
    return tuple(
        max(1, round(warm + (max(cool, warm) - warm) * cold))
        for warm, cool in zip(entry.warm_ns, entry.cold_ns, strict=True)
    )
