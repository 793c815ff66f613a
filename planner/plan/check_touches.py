"""Part of `check`: everything that every slice of a program reads and writes, as flat arrays.

A **tensor** is what readers and writers mean by the same bytes: a value together with its views, or one named part
of a node's scratch block. Two tensors are never allowed to be in one another's way, whatever their addresses; where
one takes over the bytes of the other is the business of check_races.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from planner.graph.model import Graph, Program
from planner.ops.base import Access, scratch_offsets
from planner.plan.check_order import BoolArray, IntArray
from planner.plan.check_structure import LARGEST, PlannedNode, Slices, ask
from planner.plan.findings import Report
from planner.plan.schema import Plan

FIELDS = ("slice", "tensor", "write", "lo", "hi", "width", "col_lo", "col_hi", "step", "source")


@dataclass(frozen=True)
class Tensor:
    """`value` is the first value of a chain of views; of scratch, `node` and `part` are set instead."""

    value: str = ""
    node: str = ""
    part: str = ""
    offset: int = 0
    """Of a scratch part: where it starts within the arena."""
    bytes: int = 0

    def text(self) -> str:
        return f"value {self.value}" if self.value else f"scratch part {self.part} of node {self.node}"


@dataclass(frozen=True)
class Touches:
    """All accesses of a program, sorted by tensor; one element per access in every array.

    lo, hi: hull, in bytes from the tensor's start (of scratch: in shares). width, col_lo, col_hi: the rectangle
    within the hull in the same units; width 0 when contiguous. step: the place of the access's node and stage in
    the graph's order. source: k where the access reads the node's operand `in<k>`, else -1.
    """

    tensors: tuple[Tensor, ...]
    start: IntArray
    """Tensor t has the accesses start[t] to start[t + 1]."""
    slice: IntArray
    tensor: IntArray
    write: BoolArray
    lo: IntArray
    hi: IntArray
    width: IntArray
    col_lo: IntArray
    col_hi: IntArray
    step: IntArray
    source: IntArray

    def of(self, tensor: int) -> IntArray:
        """Indices of a tensor's accesses."""
        return np.arange(self.start[tensor], self.start[tensor + 1])

    def columns_apart(self, a: IntArray, b: IntArray) -> BoolArray:
        """Rectangles over lines of one width whose columns have none in common, for equally placed accesses."""
        result: BoolArray = (
            (self.width[a] == self.width[b])
            & (self.width[a] > 0)
            & ((self.col_lo[a] >= self.col_hi[b]) | (self.col_lo[b] >= self.col_hi[a]))
        )
        return result


def survivors(program: Program, plan: Plan, roots: Mapping[str, str]) -> set[str]:
    """The tensors whose bytes must be intact when the program ends: its outputs, and what the plan keeps."""
    return {roots[v] for v in (*program.outputs, *plan.keep) if v in roots}


def touches(graph: Graph, slices: Slices, roots: Mapping[str, str], report: Report) -> Touches | None:
    """Ask every op what its slices touch; None after findings."""
    before = len(report)
    tensors: list[Tensor] = []
    number: dict[str, int] = {}
    for value in roots.values():
        if value not in number:
            number[value] = len(tensors)
            tensors.append(Tensor(value=value, bytes=graph.value[value].type.bytes))
    stages = max((p.stages for p in slices.nodes), default=0) + 1
    known: dict[object, _Pattern | None] = {}
    columns: list[tuple[IntArray, ...]] = []
    for planned in slices.nodes:
        operands = _operands(graph, planned, roots, number, tensors) if planned.stages else {}
        for stage in range(planned.stages):
            pattern = _pattern(planned, stage, known, slices.plan.name, report)
            if pattern is not None:
                columns.append(_bind(pattern, operands, planned, stage, planned.index * stages + stage))
    if len(report) > before:
        return None
    arrays = [
        np.concatenate(c) if c else np.zeros(0, np.int64) for c in (list(zip(*columns, strict=True)) or [()] * 10)
    ]
    order = np.argsort(arrays[1], kind="stable")
    fields: dict[str, Any] = {name: a[order] for name, a in zip(FIELDS, arrays, strict=True)}
    fields["write"] = fields["write"].astype(bool)
    start = np.searchsorted(fields["tensor"], np.arange(len(tensors) + 1))
    return Touches(tensors=tuple(tensors), start=start, **fields)


@dataclass(frozen=True)
class _Pattern:
    """What the slices of one (signature, mode, facts, stage) touch: columns slice index, operand, write, lo, hi, width,
    col_lo, col_hi, in elements; operands are indices into `names`."""

    names: tuple[str, ...]
    columns: tuple[IntArray, ...]


def _pattern(
    planned: PlannedNode, stage: int, known: dict[object, _Pattern | None], program: str, report: Report
) -> _Pattern | None:
    """Networks repeat their layers, so what an op says is kept and used again."""
    plan, op, signature = planned.plan, planned.op, planned.signature
    key = (signature.text, plan.mode, stage, tuple(sorted(plan.facts.items())))
    if key not in known:
        rows = ask(
            lambda: [
                (index, access)
                for index in range(plan.slices)
                for access in op.accesses(signature, plan.mode, stage, index, plan.facts)
            ],
            planned.node.id,
            program,
            report,
        )
        known[key] = _table(planned, rows, program, report) if rows is not None else None
    return known[key]


def _table(planned: PlannedNode, rows: list[tuple[int, Access]], program: str, report: Report) -> _Pattern | None:
    signature = planned.signature
    limits: dict[str, int] = {p.name: LARGEST for p in planned.scratch}
    for prefix, types in (("in", signature.inputs), ("out", signature.outputs), ("up", signature.updates)):
        limits |= {f"{prefix}{i}": t.elements for i, t in enumerate(types)}
    names = {name: i for i, name in enumerate(limits)}
    table: list[tuple[int, ...]] = []
    for index, access in rows:
        lo, hi = access.hull
        if lo == hi:
            continue
        if not 0 <= lo < hi <= limits.get(access.operand, 0):
            what = f"touches elements {lo} to {hi} of operand {access.operand}, which has not so many"
            report.add("SP1432", program, f"node {planned.node.id}: slice {index} {what}")
            return None
        (c0, c1), width = access.cols, access.width
        if (c0, c1) == (0, width) or access.rows[1] - access.rows[0] == 1:
            width = c0 = c1 = 0
        table.append((index, names[access.operand], int(access.write), lo, hi, width, c0, c1))
    array = np.array(table, np.int64).reshape(len(table), 8)
    return _Pattern(tuple(names), tuple(np.ascontiguousarray(array[:, i]) for i in range(8)))


def _operands(
    graph: Graph, planned: PlannedNode, roots: Mapping[str, str], number: Mapping[str, int], tensors: list[Tensor]
) -> dict[str, tuple[int, int, int]]:
    """operand -> (tensor, bytes per element, k of in<k> or -1); adds the node's scratch parts to the tensors."""
    node = planned.node
    found: dict[str, tuple[int, int, int]] = {}
    for prefix, values in (("in", node.inputs), ("out", node.outputs), ("up", node.updates)):
        for i, value in enumerate(values):
            itemsize = graph.value[value].type.dtype.itemsize
            found[f"{prefix}{i}"] = (number[roots[value]], itemsize, i if prefix == "in" else -1)
    offsets = scratch_offsets(planned.scratch)
    for part in planned.scratch:
        if part.bytes:
            offset = planned.plan.scratch_offset + offsets[part.name]
            found[part.name] = (len(tensors), 1, -1)
            tensors.append(Tensor(node=node.id, part=part.name, offset=offset, bytes=part.bytes))
    return found


def _bind(
    pattern: _Pattern, operands: Mapping[str, tuple[int, int, int]], planned: PlannedNode, stage: int, step: int
) -> tuple[IntArray, ...]:
    """A pattern's accesses as those of one node."""
    index, operand, write, *spans = pattern.columns
    # A part of no bytes has no tensor: nothing of it can be touched.
    bound = np.array([operands.get(name, (-1, 1, -1)) for name in pattern.names], np.int64).reshape(-1, 3)
    tensor, itemsize, source = bound[operand].T
    kept = tensor >= 0
    lo, hi, width, col_lo, col_hi = (span * itemsize for span in spans)
    columns = (
        index + planned.slices_of(stage).start,
        tensor,
        write,
        lo,
        hi,
        width,
        col_lo,
        col_hi,
        np.full(len(index), step),
        source,
    )
    return columns if kept.all() else tuple(c[kept] for c in columns)
