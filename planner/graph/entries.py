"""The entries of sparse matrices in the order of their targets: of constants ahead of time, of others in the step.

A graph's edges come in any order, and a sum or maximum over them then reads and writes a row of its result for every
edge. In the order of the targets it has every row done at once, as with compressed sparse rows; the additions of a row
keep their order. Each product has an order of its own: a gradient's targets are the sources of its forward pass. What
belongs to the entries and is computed in the step, weights and their gradients, is moved there, or back, by a node.
"""

from collections.abc import Callable, Mapping
from itertools import count
from typing import NamedTuple

import numpy as np

from planner.graph.model import DType, Graph, Init, Node, Program, Role, TensorType, Value
from planner.ops.base import Array, op_named
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.entries import SortEntries, SortEntriesAttrs
from planner.ops.sparse import LINE, EntriesAttrs, SparseOp

VIEWS = frozenset({"reshape", "slice"})
"""What takes the ends of edges out of an input."""
WIDE = LINE
"""Rows of fewer columns lie together in cache lines: their entries are not sorted in the step."""


def order_entries(graph: Graph, data: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph whose products with sparse matrices go through them in order, and the contents of its persistent
    values: `data`, by name, with reordered constants, and without those that nobody reads any more."""
    ordered = _Ordered(graph, data)
    programs = tuple(ordered.program(p) for p in graph.programs)
    read = {v for p in programs for n in p.nodes for v in n.reads}
    gone = ordered.replaced - read
    values = tuple(v for v in ordered.values.values() if v.id not in gone)
    names = {graph.value[v].name for v in gone}
    kept = {name: contents for name, contents in ordered.data.items() if name not in names}
    return graph.model_copy(update={"values": values, "programs": programs}), kept


class _Order(NamedTuple):
    """Entries in the order of their targets. Constants are made where they are asked for."""

    sources: str
    targets: str
    places: Callable[[], str]
    """Which entry is the i-th."""
    ranks: Callable[[], str]
    """Which one entry i is."""
    known: bool
    """Ahead of time."""


class _Seen:
    """What nodes of a program have made so far."""

    def __init__(self) -> None:
        self.moved: set[str] = set()
        """Weights in order."""
        self.sorts: dict[tuple[str, ...], _Order] = {}
        self._views: dict[tuple[str, str, str], str] = {}
        self._same: dict[str, str] = {}

    def view(self, node: Node) -> None:
        """Layers that each take the ends out of one input take the same."""
        (x,), (y,) = node.inputs, node.outputs
        self._same[y] = self._views.setdefault((node.op, node.attrs.text(), self.first(x)), y)

    def first(self, value: str) -> str:
        """The first value that holds the same."""
        return self._same.get(value, value)


class _Ordered:
    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.values: dict[str, Value] = {v.id: v for v in graph.values}
        self.data: dict[str, Array] = dict(data)
        self.replaced: set[str] = set()
        """Constants, and views, that some node does not read any more."""
        self._orders: dict[str, Array] = {}
        """Targets -> their entries in order."""
        self._made: dict[tuple[str, str, str], str] = {}
        """What a constant is, a constant, and the targets -> it in their order."""

    def program(self, program: Program) -> Program:
        seen, kept = _Seen(), list[Node]()
        nodes = [found for node in program.nodes for found in self._node(node, seen)]
        read = set(program.outputs)  # views that equal others have lost their readers
        for node in reversed(nodes):
            if node.op in VIEWS and not read.intersection(node.outputs):
                self.replaced.update(node.outputs)
                continue
            read.update(node.reads)
            kept.append(node)
        return program.model_copy(update={"nodes": tuple(reversed(kept))})

    def _node(self, node: Node, seen: _Seen) -> list[Node]:
        """The node; if it is such a product, with its entries in order, and with what orders them, or moves things
        there or back."""
        if node.op in VIEWS:
            seen.view(node)
        attrs, op = node.attrs, op_named(node.op)
        if not isinstance(attrs, EntriesAttrs) or not isinstance(op, SparseOp) or attrs.ordered:
            return [node]
        first = op.first_entries
        sources, targets = node.inputs[first : first + 2]
        in_order = node.model_copy(update={"attrs": attrs.model_copy(update={"ordered": True})})
        if self._constant(targets) and bool((np.diff(self._order(targets)) > 0).all()):
            return [in_order]
        before: list[Node] = []
        if self._constant(targets) and self._constant(sources):
            order = self._known(sources, targets)
        elif self.values[node.inputs[0]].type.shape[1] >= WIDE:
            before, order = self._sorted(node, op, seen)
        else:
            return [node]
        inputs = [*node.inputs]
        inputs[first : first + 2] = order.sources, order.targets
        if node.op == "sddmm":
            ordered = in_order.model_copy(update={"inputs": tuple(inputs)})
            return [*before, *self._moved_back(ordered, order.ranks())]
        for place, weights in enumerate(inputs[first + 2 :], first + 2):
            if order.known and self._constant(weights):
                inputs[place] = self._taken(weights, "weights", targets)
                continue
            places = order.places()
            inputs[place] = f"{weights}.by.{places}"
            if inputs[place] not in seen.moved:
                before.append(self._move(node, weights, places, inputs[place]))
                seen.moved.add(inputs[place])
        return [*before, in_order.model_copy(update={"inputs": tuple(inputs)})]

    def _known(self, sources: str, targets: str) -> _Order:
        """Of constants."""

        def ranks() -> str:
            order = self._order(targets)
            found = np.empty_like(order)
            found[order] = np.arange(len(found))
            return self._stored("ranks", found, "", targets)

        return _Order(
            sources=self._taken(sources, "sources", targets),
            targets=self._taken(targets, "targets", targets),
            places=lambda: self._stored("places", self._order(targets), "", targets),
            ranks=ranks,
            known=True,
        )

    def _sorted(self, node: Node, op: SparseOp, seen: _Seen) -> tuple[list[Node], _Order]:
        """In the step, by a node before the first one that needs it."""
        entries = tuple(map(seen.first, node.inputs[op.first_entries : op.first_entries + 2]))
        inputs, outputs = ([self.values[v].type for v in found] for found in (node.inputs, node.outputs))
        rows = inputs[op.picked_from].shape[0]
        attrs = SortEntriesAttrs(source_rows=rows, target_rows=op.target_rows(inputs, outputs))
        key = (*entries, attrs.text())
        if key in seen.sorts:
            return [], seen.sorts[key]
        name = f"{node.id}.sort"
        results = tuple(f"{name}.{output}" for output in SortEntries.output_names)
        for result in results:
            self._compute(result, self.values[entries[0]].type, node)
        sources, targets, places, ranks = results
        seen.sorts[key] = _Order(sources, targets, lambda: places, lambda: ranks, False)
        update = {"id": name, "op": SortEntries.name, "attrs": attrs, "inputs": entries, "outputs": results}
        return [node.model_copy(update=update)], seen.sorts[key]

    def _order(self, targets: str) -> Array:
        if targets not in self._orders:
            self._orders[targets] = np.argsort(self._contents(targets), kind="stable")
        return self._orders[targets]

    def _moved_back(self, node: Node, ranks: str) -> list[Node]:
        """The products of entries in order, and these where they were before."""
        (result,) = node.outputs
        inner = f"{result}.in_order"
        self.values[inner] = self.values[result].model_copy(update={"id": inner, "gradient_of": ""})
        return [node.model_copy(update={"outputs": (inner,)}), self._move(node, inner, ranks, result)]

    def _move(self, beside: Node, x: str, places: str, result: str) -> Node:
        """result[i] = x[places[i]]."""
        self._compute(result, self.values[x].type, beside)
        name = f"{beside.id}.moved"
        update = {"id": name, "op": "embedding", "attrs": EmbeddingAttrs(), "inputs": (x, places), "outputs": (result,)}
        return beside.model_copy(update=update)

    def _compute(self, value: str, type_: TensorType, beside: Node) -> None:
        """Make a value that is computed just before a node, unless it is one already."""
        if value not in self.values:
            role = Role.GRADIENT if beside.phase == "backward" else Role.ACTIVATION
            self.values[value] = Value(id=value, type=type_, role=role)

    def _constant(self, value: str) -> bool:
        known = self.values[value]
        return known.constant and known.name in self.data

    def _contents(self, value: str) -> Array:
        return self.data[self.values[value].name]

    def _taken(self, value: str, what: str, targets: str) -> str:
        """What the constant holds for the entries in order."""
        self.replaced.add(value)
        return self._stored(what, self._contents(value)[self._order(targets)], value, targets)

    def _stored(self, what: str, contents: Array, of: str, targets: str) -> str:
        key = (what, of, targets)
        if key not in self._made:
            name = next(n for i in count() if (n := f"{what}_{i}") not in self.values and n not in self.data)
            type_ = TensorType(shape=contents.shape, dtype=DType(contents.dtype.name))
            init = Init(kind="data")
            self.values[name] = Value(id=name, type=type_, role=Role.STATE, name=name, constant=True, init=init)
            self.data[name] = contents
            self._made[key] = name
        return self._made[key]
