"""How little extra time any plan within a memory budget can take: a linear program over what is in memory when.

Moments are the nodes after the forward pass (some of them, where there are many). For every value v that can be made
again, and every moment k:

    in_memory[v, k]    how much of v is in memory while node k runs, 0..1
    again[n, k]        how much of forward node n runs again between moment k - 1 and k, 0..1

    in_memory[v, k] <= in_memory[v, k - 1] + again[maker of v, k]              nothing comes from nowhere
    again[n, k]     <= in_memory[u, k - 1] + again[maker of u, k]              for everything u that n reads
    1               <= in_memory[v, k - 1] + again[maker of v, k]              where v is read between k - 1 and k
    sum of size * in_memory[., k] <= budget - what is in memory at k anyway
    minimise the sum of time * again

Every plan in the same order and the same modes, whatever it drops and however often it makes it again, is a solution in
whole numbers, so the optimum of the relaxation is below them all; and what it keeps is a good start for a search. What
is in memory for moments only, such as what a recomputation itself needs, is left out, as are values that may be
overwritten in place: that only lowers the bound.
The idea is Checkmate's (Jain et al., MLSys 2020), relaxed and thinned out.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from planner.graph.model import PERSISTENT, Graph, Program
from planner.ops.base import op_named, scratch_bytes
from planner.ops.device import running
from planner.ops.signature import signature_of
from planner.solve.memory.steps import Material
from planner.solve.schedule import Schedule
from planner.units import align

VARIABLES = 4_000
"""Fewer moments are looked at where there would be more."""


class Relaxed(NamedTuple):
    """What the linear program finds for a budget."""

    again_ns: float
    kept: Mapping[str, float]
    """value -> how much of it is in memory when the forward pass is over"""


class _Rows(NamedTuple):
    """matrix * columns <= limits"""

    cost: np.ndarray[tuple[int], np.dtype[np.float64]]
    matrix: Any
    limits: np.ndarray[tuple[int], np.dtype[np.float64]]
    space: list[int]
    """Rows whose limits are what a budget leaves, moment by moment."""
    bounds: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    kept: Mapping[str, int]
    """value -> the column that says how much of it is in memory when the forward pass is over"""


class Relaxation:
    """The linear program of one program of a graph; `solve` it for several budgets."""

    def __init__(
        self,
        graph: Graph,
        program: Program,
        schedule: Schedule,
        made: Material,
        again_ns: Mapping[str, float],
        keep: Collection[str] = (),
    ) -> None:
        """`again_ns`: forward node -> time of running it again. `keep`: values that stay to the end."""
        self._made, self._again_ns = made, again_ns
        self._size = {v.id: align(v.type.bytes) for v in graph.values}
        self._values = [v for v in made.values if v in made.producer]
        self._known = frozenset(self._values)
        order = made.order
        start = max((i for i, n in enumerate(order) if n.phase == "forward"), default=-1) + 1
        reads = {i: self._droppable(order[i].reads) for i in range(start, len(order))}
        last: dict[str, int] = {}
        for at, found in reads.items():
            last.update(dict.fromkeys(found, at))
        # What is made again reads other values: those are worth keeping as long as it is.
        for node in reversed([n for n in order if n.id in made.again]):
            until = max((last.get(v, -1) for v in node.outputs), default=-1)
            for value in self._droppable(made.again[node.id].inputs):
                last[value] = max(last.get(value, -1), until)
        self._last = last
        at_work = [i for i in range(start, len(order)) if order[i].phase != "update"]
        room = max(1, VARIABLES // max(1, len(self._values)))
        every = max(1, -(-len(at_work) // room))
        self._moments = at_work[::every] if at_work else []
        self._needed = [reads[i] for i in self._moments]
        self._read_before = []
        for before, moment in zip([start - 1, *self._moments], self._moments, strict=False):
            self._read_before.append({v for i in range(before + 1, moment + 1) for v in reads[i]})
        self._anyway = self._fixed(graph, program, schedule, keep)

    def _droppable(self, values: Sequence[str]) -> set[str]:
        made = self._made
        return {v for v in (made.views.get(v, v) for v in values) if v in self._known}

    def _fixed(self, graph: Graph, program: Program, schedule: Schedule, keep: Collection[str]) -> list[int]:
        """Bytes at every moment that no decision changes."""
        order, made = self._made.order, self._made
        whole = {v.id for v in graph.values if v.role in PERSISTENT} | {v for p in graph.programs for v in p.inputs}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        views = dict(made.views)
        scratch = {}
        for at, node in enumerate(order):
            signature, op = signature_of(graph, node), op_named(node.op)
            alias = op.alias(signature)
            if alias is not None:
                source = node.inputs[alias[1]]
                views[node.outputs[alias[0]]] = views.get(source, source)
            choice = schedule.choices[node.id]
            inplace = {} if alias is not None else dict(op.inplace(signature, choice.mode))
            if alias is None:
                runs = running(op, choice.mode)
                scratch[at] = scratch_bytes(runs.scratch(signature, choice.mode, choice.facts))
            for value in (*node.reads, *node.writes):
                last[views.get(value, value)] = at
            for output, value in enumerate(node.outputs):
                first.setdefault(views.get(value, value), at + (output in inplace))
        for value in {*program.outputs, *keep}:
            last[views.get(value, value)] = len(order)
        change = np.zeros(len(order) + 2, np.int64)
        for value, at in first.items():
            if value not in self._known and value not in whole and last[value] >= at:
                change[at] += self._size[value]
                change[last[value] + 1] -= self._size[value]
        alive = np.cumsum(change) + sum(self._size[v] for v in whole)
        return [int(alive[i]) + scratch.get(i, 0) for i in self._moments]

    def solve(self, budget: int) -> Relaxed | None:
        """None: no recomputation makes the program fit into `budget` bytes."""
        rows = self._rows
        if rows is None:
            return Relaxed(0.0, {}) if max(self._anyway, default=0) <= budget else None
        from scipy.optimize import linprog  # loading it takes longer than a plan that fits its memory

        limits = rows.limits.copy()
        limits[rows.space] = (budget - np.array(self._anyway)) / 2**20
        found = linprog(rows.cost, rows.matrix, limits, bounds=rows.bounds, method="highs")
        if found.status != 0:
            return None
        return Relaxed(max(0.0, float(found.fun)) * 1e6, {v: float(found.x[c]) for v, c in rows.kept.items()})

    @cached_property
    def _rows(self) -> _Rows | None:
        """The linear program but for the budget; None: nothing is to be decided, as the backward pass reads nothing
        that is made again."""
        moments = range(len(self._moments))
        index: dict[tuple[str, int, str], int] = {}
        nodes = sorted({self._made.producer[v] for v in self._values})
        for value in self._values:
            for k in moments:
                if self._moments[k] <= self._last.get(value, -1):
                    index["in", k, value] = len(index)
        until = {n: -1 for n in nodes}
        for value in self._values:
            maker = self._made.producer[value]
            until[maker] = max(until[maker], self._last.get(value, -1))
        # Between the last but one moment and the end of a value's use there is an interval of its own.
        for node in nodes:
            for k in moments:
                if k > 0 and self._moments[k - 1] < until[node]:
                    index["again", k, node] = len(index)
        rows: list[tuple[list[int], list[float], float]] = []
        """(columns, factors, limit): factors * columns <= limit"""
        space: list[int] = []

        def there(value: str, k: int) -> list[int]:
            """Columns whose sum is at least what there is of a value in the interval that ends at moment k."""
            found = [("in", k - 1, value), ("again", k, self._made.producer[value])]
            return [index[c] for c in found if c in index]

        for k in moments:
            alive = [v for v in self._values if ("in", k, v) in index]
            space.append(len(rows))
            rows.append(([index["in", k, v] for v in alive], [self._size[v] / 2**20 for v in alive], 0.0))
            if k == 0:
                continue
            for value in alive:
                before = there(value, k)
                rows.append(([index["in", k, value], *before], [1.0] + [-1.0] * len(before), 0.0))
            for value in sorted(self._read_before[k]):
                before = there(value, k)
                rows.append((before, [-1.0] * len(before), -1.0))
            for node in nodes:
                if ("again", k, node) in index:
                    for value in sorted(self._droppable(self._made.again[node].inputs)):
                        before = there(value, k)
                        rows.append(([index["again", k, node], *before], [1.0] + [-1.0] * len(before), 0.0))
        if not index:
            return None
        lower = np.zeros(len(index))
        for k in moments:
            for value in self._needed[k]:
                lower[index["in", k, value]] = 1.0
        cost = np.zeros(len(index))
        for (kind, _, name), column in index.items():
            if kind == "again":
                cost[column] = self._again_ns[name] / 1e6
        starts = np.cumsum([0, *(len(c) for c, _, _ in rows)])
        from scipy.sparse import csr_array

        return _Rows(
            cost,
            csr_array(
                (np.concatenate([f for _, f, _ in rows]), np.concatenate([c for c, _, _ in rows]).astype(int), starts),
                shape=(len(rows), len(index)),
            ),
            np.array([limit for _, _, limit in rows]),
            space,
            np.column_stack([lower, np.ones(len(index))]),
            {v: c for (kind, k, v), c in index.items() if kind == "in" and k == 0},
        )
