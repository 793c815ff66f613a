"""Runs a plan with NumPy: every node's reference on the bytes where the plan puts its values, in a random order that
lanes and waits allow (node by node). What is placed wrongly, runs too early or reads the wrong instance shows, without
compiling anything."""

import random
from collections.abc import Mapping, Sequence

import numpy as np

from planner.graph.dependencies import view_roots
from planner.graph.model import PERSISTENT, DType, Graph, Node, TensorType
from planner.ops import op_named
from planner.ops.base import Array
from planner.ops.optimizer import AdamAttrs
from planner.ops.signature import signature_of
from planner.ops.strides import memory_order
from planner.plan.expand import expanded
from planner.plan.schema import Plan, ProgramPlan, parse_slice
from tests.interpreter import draw_values

TYPES = {DType.FLOAT32: np.float32, DType.INT64: np.int64, DType.UINT8: np.uint8}


class Plain:
    """Every value has bytes of its own, but for views."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self._held = graph, dict[str, Array]()
        self._roots = {v: root for p in graph.programs for v, root in view_roots(graph, p).items()}

    def view(self, value: str) -> Array:
        type_ = self.graph.value[value].type
        root = self._roots.get(value, value)
        return _logical(self._held.setdefault(root, np.zeros(type_.bytes, np.uint8)), type_)

    def read(self, value: str) -> Array:
        """References compute in double."""
        found = self.view(value).copy()
        return found.astype(np.float64) if found.dtype == np.float32 else found

    def write(self, value: str, data: Array) -> None:
        self.view(value)[...] = data

    def run(self, node: Node) -> None:
        results = op_named(node.op).reference(node.attrs, [self.read(v) for v in node.reads])
        for value, data in zip((*node.outputs, *node.updates), results, strict=True):
            self.write(value, data)


class Arenas(Plain):
    """The plan's pools, full of NaN at first; scratch becomes NaN whenever its node runs."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        super().__init__(graph)
        self._plan = plan
        self._pools = {p.name: np.full(p.arena, 0xFF, np.uint8) for p in plan.pools}
        self._scratch = {n.node: n for p in plan.programs for n in p.nodes if n.scratch_bytes}

    def view(self, value: str) -> Array:
        place, type_ = self._plan.placement[value], self.graph.value[value].type
        return _logical(self._pools[place.pool][place.offset : place.offset + place.bytes], type_)

    def run(self, node: Node) -> None:
        if op_named(node.op).alias(signature_of(self.graph, node)) is not None:
            return
        given = [self.read(v) for v in node.reads]
        if node.id in self._scratch:
            own = self._scratch[node.id]
            first = self._pools[self._plan.pools[0].name]
            first[own.scratch_offset : own.scratch_offset + own.scratch_bytes] = 0xFF
        results = op_named(node.op).reference(node.attrs, given)
        for value, data in zip((*node.outputs, *node.updates), results, strict=True):
            self.write(value, data)


def _logical(data: Array, type_: TensorType) -> Array:
    order = memory_order(type_)
    shaped = data.view(TYPES[type_.dtype]).reshape([type_.shape[axis] for axis in order])
    return shaped.transpose(sorted(range(len(order)), key=order.__getitem__))


def some_order(plan: ProgramPlan, rng: random.Random) -> list[str]:
    """A random order of the nodes that lanes and waits allow; the plan's own where slices of nodes interleave."""
    after: dict[str, set[str]] = {n.node: set() for n in plan.nodes}
    for lane in plan.lanes:
        before = ""
        for entry in lane:
            node = parse_slice(entry.run)[0]
            after[node].update(name for w in entry.wait if (name := w.rpartition("/")[0]) != node)
            after[node].update({before} - {node, ""})
            before = node
    found: list[str] = []
    ready = [n for n, others in after.items() if not others]
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        found.append(node)
        del after[node]
        for name, others in after.items():
            if node in others:
                others.remove(node)
                if not others:
                    ready.append(name)
    return [n.node for n in plan.nodes] if after else found


def inputs_of(graph: Graph, program: str, seed: int) -> Mapping[str, Array]:
    rng = np.random.default_rng(seed)
    types = {v: graph.value[v].type for v in graph.program[program].inputs}
    return {
        v: rng.integers(0, 3, t.shape) if t.dtype is DType.INT64 else rng.standard_normal(t.shape).astype(np.float32)
        for v, t in types.items()
    }


def difference(graph: Graph, plan: Plan, rng: random.Random, programs: Sequence[str]) -> str:
    """The first value that some runs of programs leave different from what the graph says; empty: none. The bytes are
    those of the expanded graph on bytes of its own; that one computes what the graph does but for rounding, as batch
    norms run again by another formula here."""
    larger = expanded(graph, plan)
    meant, same, placed = Plain(graph), Plain(larger), Arenas(larger, plan)
    stay = [v for v in graph.values if v.role in PERSISTENT]
    # Where a gradient is nothing but rounding, Adam's first step may go either way, as far as it ever goes.
    adam = max((n.attrs.lr for p in graph.programs for n in p.nodes if isinstance(n.attrs, AdamAttrs)), default=0.0)
    start = draw_values(graph, np.random.default_rng(5))
    for value in stay:
        for store in (meant, same, placed):
            store.write(value.id, start.get(value.id, np.zeros(value.type.shape)))
    for number, name in enumerate(programs):
        given = inputs_of(graph, name, number)
        nodes = {n.id: n for n in larger.program[name].nodes}
        orders = (graph.program[name].nodes, larger.program[name].nodes)
        random_order = [nodes[n] for n in some_order(plan.program[name], rng)]
        for store, order in zip((meant, same, placed), (*orders, random_order), strict=True):
            for value, data in given.items():
                store.write(value, data)
            for node in order:
                store.run(node)
        for value in (*graph.program[name].outputs, *(v.id for v in stay)):
            want, exact, got = meant.read(value), same.read(value), placed.read(value)
            # Some random nets train until their weights overflow.
            if not np.array_equal(exact, got, equal_nan=True):
                return f"{name} {number}: {value} lies differently"
            near = 2e-3 * (np.abs(want).max() + 1e-3) + 2 * adam
            if number == 0 and not np.allclose(want, exact, rtol=1e-3, atol=near):
                return f"{name} {number}: {value} means something else"
    return ""
