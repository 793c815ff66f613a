"""What is recorded: results that have no value yet, and what they are made of.

A `Record` is one operation with its operands. `trace` orders what some results need, `recipe` turns that into a graph.
Two traces with the same key compute the same from other data: they share a recipe, and so a plan and an executor.
"""

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from planner.frontends.emitter import Emitter
from planner.frontends.naming import fresh_id, identifier
from planner.graph.builder import GraphBuilder, live_nodes
from planner.graph.chains import join
from planner.graph.model import DType, Graph, Node, Program, Role
from planner.narray.operations import lower
from planner.ops import op_named
from planner.ops.base import Array

STEP = "train_step"
"""The program of a recorded graph."""


@lru_cache(maxsize=64)
def dtype_name(dtype: "np.dtype[Any]") -> str:
    """NumPy makes it anew each time, which takes longer than all else that is said of an array."""
    return dtype.name


class Number(float):
    """A number in an expression that may be another one at the next run."""


class Record:
    """A result: of an operation, or given (`data`, or a placeholder that gets data when its function is called)."""

    __slots__ = ("__weakref__", "data", "dtype", "handles", "label", "name", "operands", "order", "owner", "shape")

    def __init__(
        self, owner: object, name: str, operands: tuple[Any, ...], shape: tuple[int, ...], dtype: str, label: str = ""
    ) -> None:
        self.owner, self.name, self.operands, self.label = owner, name, operands, label
        self.shape, self.dtype = shape, dtype
        self.data: Array | None = None
        self.handles = 0
        """How many arrays of the user's are this result."""
        self.order = 0
        """Counts what its owner recorded."""

    def __del__(self) -> None:
        release = getattr(self.owner, "release", None)
        if self.data is not None and release is not None:
            release(self.data.nbytes)

    @property
    def given(self) -> bool:
        """Whether it is no operation's, or its value is there."""
        return not self.name or self.data is not None


# -- single operations -----------------------------------------------------------------------------------------
class Piece(NamedTuple):
    """One operation as nodes, for operands of certain types."""

    shape: tuple[int, ...]
    dtype: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    output: str
    constants: tuple[tuple[str, Array], ...]


def piece(name: str, operands: Sequence[Any]) -> Piece:
    """Errors are those of the op: SP1002 where shapes do not fit."""
    kinds = tuple(
        ("value", o.shape, o.dtype) if isinstance(o, Record) else ("number",) if isinstance(o, Number) else ("fixed", o)
        for o in operands
    )
    return _piece(name, kinds)


@lru_cache(maxsize=4096)
def _piece(name: str, kinds: tuple[Any, ...]) -> Piece:
    emitter = Emitter(GraphBuilder("operation"))
    emitter.name = name
    operands: list[Any] = []
    for position, kind in enumerate(kinds):
        if kind[0] == "fixed":
            operands.append(kind[1])
            continue
        shape, dtype = kind[1:] if kind[0] == "value" else ((), "float32")
        operands.append(emitter.input(f"x{position}", shape, DType(dtype)))
    output = lower(emitter, name, tuple(operands))
    b = emitter.b
    type_, named = b.type(output), {v.name: v.id for v in b.values.values() if v.name}
    constants = tuple((named[n], a) for n, a in emitter.weights.items())
    return Piece(type_.shape, type_.dtype.value, tuple(b.nodes), tuple(b.inputs), output, constants)


def compute(found: Piece, arrays: Sequence[Array]) -> Array:
    """The operation in NumPy."""
    held: dict[str, Array] = {**dict(zip(found.inputs, arrays, strict=True)), **dict(found.constants)}
    with np.errstate(over="ignore"):
        for node in found.nodes:
            results = op_named(node.op).reference(node.attrs, [held[v] for v in node.reads])
            held.update(zip(node.outputs, results, strict=False))
    return np.asarray(held[found.output], found.dtype, order="C")


# -- many operations -------------------------------------------------------------------------------------------
class Trace(NamedTuple):
    """What some results need, in the order in which it was recorded."""

    leaves: tuple[Record, ...]
    records: tuple[Record, ...]
    wanted: tuple[Record, ...]
    numbers: tuple[float, ...]
    key: Hashable
    """Equal for traces that differ in data and numbers alone."""


def trace(wanted: Sequence[Record]) -> Trace:
    seen: dict[int, Record] = {}
    waiting = list(wanted)
    while waiting:
        record = waiting.pop()
        if id(record) not in seen:
            seen[id(record)] = record
            if not record.given:
                waiting.extend(o for o in record.operands if isinstance(o, Record))
    records = tuple(sorted((r for r in seen.values() if not r.given), key=lambda r: r.order))
    index: dict[int, int] = {}
    leaves, numbers, said = [], [], []
    for record in (*records, *(r for r in wanted if r.given)):
        parts: list[Any] = []
        for operand in (record,) if record.given else record.operands:
            if isinstance(operand, Record):
                if operand.given and id(operand) not in index:
                    index[id(operand)] = len(index)
                    leaves.append(operand)
                parts.append(("value", index[id(operand)]))
            elif isinstance(operand, Number):
                numbers.append(float(operand))
                parts.append(("number",))
            else:
                parts.append(operand)
        if not record.given:
            index[id(record)] = len(index)
        said.append((record.name, record.label, tuple(parts)))
    kinds = tuple((r.shape, r.dtype) for r in leaves)
    key = (kinds, tuple(said), tuple(index[id(r)] for r in wanted))
    return Trace(tuple(leaves), records, tuple(wanted), tuple(numbers), key)


class Recipe(NamedTuple):
    """A trace as a graph."""

    graph: Graph | None
    """None: every result is one of the leaves."""
    weights: dict[str, Array]
    inputs: tuple[int, ...]
    """What the program takes: positions among the leaves, followed by the numbers."""
    results: tuple[tuple[str, int], ...]
    """Of each wanted record: ("output", position among the program's outputs) or ("input", position as in inputs)."""


def recipe(traced: Trace, name: str, numbers_vary: bool) -> Recipe:
    """`numbers_vary`: numbers are inputs of the program; else they are part of it."""
    emitter = Emitter(GraphBuilder(identifier(name)))
    values: dict[int, str] = {}
    given: list[str] = []
    for position, leaf in enumerate(traced.leaves):
        emitter.name = leaf.label
        given.append(emitter.input(leaf.label or f"x{position}", leaf.shape, DType(leaf.dtype)))
        values[id(leaf)] = given[-1]
    count = 0
    for record in traced.records:
        operands: list[Any] = []
        for operand in record.operands:
            if isinstance(operand, Record):
                operands.append(values[id(operand)])
            elif isinstance(operand, Number) and numbers_vary:
                given.append(emitter.input(f"number{count}", ()))
                operands.append(given[-1])
            else:
                operands.append(float(operand) if isinstance(operand, Number) else operand)
            count += isinstance(operand, Number)
        emitter.name = fresh_id(record.label or record.name, emitter.b.values)
        values[id(record)] = lower(emitter, record.name, tuple(operands))
    named = {values[id(r)] for r in traced.records if r.label}
    return _finished(emitter, name, given, [values[id(r)] for r in traced.wanted], named)


def _finished(emitter: Emitter, name: str, given: list[str], wanted: list[str], named: set[str]) -> Recipe:
    """`named`: what the plan shall show, so that no chain takes it."""
    b = emitter.b
    outputs = tuple(dict.fromkeys(v for v in wanted if v not in given))
    results = tuple(("output", outputs.index(v)) if v in outputs else ("input", given.index(v)) for v in wanted)
    if not outputs:
        return Recipe(None, {}, (), results)
    live = live_nodes(b.nodes, set(outputs))
    nodes = join(live, b.values, {*outputs, *named}, "forward", differentiated=False)
    read = {v for n in nodes for v in n.reads}
    inputs = [v for v in given if v in read]
    for value in outputs:
        b.values[value] = b.values[value].model_copy(update={"role": Role.OUTPUT})
    used = {*read, *inputs, *(v for n in nodes for v in n.outputs)}
    program = Program(name=STEP, nodes=tuple(nodes), inputs=tuple(inputs), outputs=outputs)
    kept = tuple(v for v in b.values.values() if v.id in used)
    graph = Graph(name=identifier(name), values=kept, programs=(program,))
    weights = {n: w for n, w in emitter.weights.items() if any(v.name == n for v in kept)}
    return Recipe(graph, weights, tuple(given.index(v) for v in inputs), results)
