"""Which values labels, indices and lengths may have: those among a graph's inputs, and those that nodes tell of.

An input may reach the op that indexes with it through copies: 26 columns of categories are split and looked up in 26
tables. So positions are sent through the copies' NumPy references, and every lookup says what its positions hold.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from planner.graph.model import DType, Graph, Node
from planner.ops.base import Signature, op_named
from planner.ops.signature import signature_of

LABELS = {
    "cross_entropy": 1,
    "cross_entropy_backward": 5,
    "cross_entropy_rows": 1,
    "cross_entropy_rows_backward": 4,
    "nll_loss": 1,
    "nll_loss_backward": 2,
}
"""Op -> which operand holds labels."""

PICKED = {
    "embedding": {1: "in0"},
    "embedding_backward": {1: "out0"},
    "embedding_sgd_update": {1: "up0"},
    "sddmm": {2: "in0", 3: "in1"},
    "segment_max": {1: "in0", 2: "out0"},
    "segment_max_backward": {3: "in2", 4: "out0"},
    "sort_entries": {0: "source_rows", 1: "target_rows"},
    "spmm": {1: "in0", 2: "out0"},
}
"""Op -> which operands hold indices, and of which operand's rows, or which attribute says of how many."""

LENGTHS = {"ctc_loss": {2: "frames", 3: "labels"}}
"""Op -> which operands hold how many there are of what."""

UNLIMITED = int(np.iinfo(np.int64).max)


def index_operands(op: str) -> tuple[int, ...]:
    """Which operands hold labels, indices or lengths."""
    return (LABELS[op],) if op in LABELS else (*PICKED.get(op, ()), *LENGTHS.get(op, ()))


def reported_operands(op: str) -> tuple[int, ...]:
    """Of these, which the op's kernel tells of if they are out of range: labels of a loss, indices of what is read."""
    if op in LABELS:
        return () if op.endswith("_backward") else (LABELS[op],)
    return tuple(i for i, rows in PICKED.get(op, {}).items() if not rows.startswith(("out", "up")))


class Look(NamedTuple):
    """What is looked at before a node's kernel, which takes no notice of indices out of range: an operand's indices, to
    be less than `end`; they are told of with `number`."""

    operand: int
    end: int
    number: int


class Told:
    """Which indices nodes of a program tell of, where they are out of range."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._ends: dict[str, int] = {}
        self.values: list[str] = []
        """By number."""

    def by_kernel(self, node: Node) -> int:
        """The number of the first of the indices that the node's kernel looks at, which others follow, or -1."""
        operands = reported_operands(node.op)
        number = len(self.values) if operands else -1
        for operand in operands:
            self._tell(node, operand)
        return number

    def before(self, node: Node) -> tuple[Look, ...]:
        """Lengths, and what picks rows of the node's result. A gradient's indices are those of what was read; entries
        in order were looked at when they were sorted."""
        rows = {} if getattr(node.attrs, "ordered", False) else PICKED.get(node.op, {})
        written = [i for i, where in rows.items() if where.startswith("out")]
        known = self._ends.get
        return tuple(
            self._tell(node, i)
            for i in (*written, *LENGTHS.get(node.op, ()))
            if index_range(signature_of(self._graph, node), i)[0] < known(node.inputs[i], UNLIMITED)
        )

    def _tell(self, node: Node, operand: int) -> Look:
        end, _ = index_range(signature_of(self._graph, node), operand)
        value = node.inputs[operand]
        self._ends[value] = min(end, self._ends.get(value, UNLIMITED))
        self.values.append(value)
        return Look(operand, end, len(self.values) - 1)


MOVES = frozenset({"concat", "convert_layout", "expand", "permute", "reshape", "slice", "split"})
"""Ops whose results are elements of their inputs."""


class Indices(NamedTuple):
    """What one input may hold: from 0 up to, not including, `ends`, or `ignored`."""

    ends: np.ndarray[Any, np.dtype[np.int64]]
    """In the input's shape."""
    ignored: int

    @property
    def whole(self) -> tuple[int, int, int] | None:
        """(first, end, ignored) where all elements have the same end."""
        end = int(self.ends.flat[0])
        return (0, end, self.ignored) if (self.ends == end).all() else None

    @property
    def columns(self) -> tuple[int, ...]:
        """The end of every column of the last dimension, where that is all they depend on; else nothing."""
        rows = self.ends.reshape(-1, self.ends.shape[-1])
        return tuple(map(int, rows[0])) if (rows == rows[0]).all() else ()


def index_inputs(graph: Graph) -> Mapping[str, Indices]:
    """The inputs of all programs that hold labels or indices. Those whose readers disagree on what is ignored are left
    out, like those that nobody indexes with."""
    inputs = {i for p in graph.programs for i in p.inputs if graph.value[i].type.dtype is DType.INT64}
    order, start = [], {}
    total = 0
    for value in sorted(inputs):
        order.append(value)
        start[value] = total
        total += graph.value[value].type.elements
    ends = np.full(total, UNLIMITED, np.int64)
    ignored: dict[str, set[int]] = {value: set() for value in order}
    for program in graph.programs:
        places = {v: np.arange(start[v], start[v] + graph.value[v].type.elements) for v in order}
        held = {v: places[v].reshape(graph.value[v].type.shape) for v in order}
        for node in program.nodes:
            if node.op in MOVES and all(v in held for v in node.inputs):
                moved = op_named(node.op).reference(node.attrs, [held[v] for v in node.inputs])
                held.update(zip(node.outputs, moved, strict=True))
            for operand in index_operands(node.op):
                if node.inputs[operand] not in held:
                    continue
                end, skipped = index_range(signature_of(graph, node), operand)
                where = held[node.inputs[operand]].reshape(-1)
                ends[where] = np.minimum(ends[where], end)
                for value in order:
                    if np.isin(where, places[value]).any():
                        ignored[value].add(skipped)
    return {
        v: Indices(ends[places[v]].reshape(graph.value[v].type.shape), next(iter(ignored[v])))
        for v in order
        if len(ignored[v]) == 1
    }


def index_range(signature: Signature, operand: int) -> tuple[int, int]:
    """Of an operand with labels, indices or lengths the last valid one + 1, and the one that is ignored (one that is
    valid anyway, if none is)."""
    attrs: Any = signature.attrs
    if signature.op in LABELS:
        classes = getattr(attrs, "classes", None) or next(t.shape[1] for t in signature.inputs if len(t.shape) == 2)
        return classes, attrs.ignore_index
    if signature.op in LENGTHS:
        _, frames, states = signature.inputs[0].shape
        return {"frames": frames, "labels": states // 2}[LENGTHS[signature.op][operand]] + 1, 0
    rows = PICKED[signature.op][operand]
    if hasattr(attrs, rows):
        return int(getattr(attrs, rows)), 0
    operand_of = {
        **{f"in{i}": t for i, t in enumerate(signature.inputs)},
        **{f"out{i}": t for i, t in enumerate(signature.outputs)},
        **{f"up{i}": t for i, t in enumerate(signature.updates)},
    }
    return operand_of[rows].shape[0], 0
