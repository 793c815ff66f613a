"""The entries of sparse matrices that are constants, put into the order of their targets ahead of time.

A graph's edges come in any order, and a sum or maximum over them then reads and writes a row of its result for every
edge. In the order of the targets it has every row done at once, as with compressed sparse rows; the additions of a row
keep their order. Each product has an order of its own: a gradient's targets are the sources of its forward pass. What
belongs to the entries and is computed in the step, weights and their gradients, is moved there, or back, by a node.
"""

from collections.abc import Mapping
from itertools import count

import numpy as np

from planner.graph.model import DType, Graph, Init, Node, Program, Role, TensorType, Value
from planner.ops.base import Array, op_named
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.sparse import EntriesAttrs, SparseOp


def order_entries(graph: Graph, data: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph whose products with constant sparse matrices go through them in order, and the contents of its
    persistent values: `data`, by name, with reordered constants, and without those that nobody reads any more."""
    ordered = _Ordered(graph, data)
    programs = tuple(ordered.program(p) for p in graph.programs)
    read = {v for p in programs for n in p.nodes for v in n.reads}
    gone = ordered.replaced - read
    values = tuple(v for v in ordered.values.values() if v.id not in gone)
    names = {graph.value[v].name for v in gone}
    kept = {name: contents for name, contents in ordered.data.items() if name not in names}
    return Graph(name=graph.name, values=values, programs=programs), kept


class _Ordered:
    def __init__(self, graph: Graph, data: Mapping[str, Array]) -> None:
        self.values: dict[str, Value] = {v.id: v for v in graph.values}
        self.data: dict[str, Array] = dict(data)
        self.replaced: set[str] = set()
        """Constants that some node does not read any more."""
        self._orders: dict[str, Array] = {}
        """Targets -> their entries in order."""
        self._made: dict[tuple[str, str, str], str] = {}
        """What a constant is, a constant, and the targets -> it in their order."""

    def program(self, program: Program) -> Program:
        moved: set[str] = set()
        nodes = tuple(found for node in program.nodes for found in self._node(node, moved))
        return program.model_copy(update={"nodes": nodes})

    def _node(self, node: Node, moved: set[str]) -> list[Node]:
        """The node; if it is such a product, with its entries in order, and with what moves things there or back.
        `moved`: weights in order that a node of this program has made."""
        attrs, op = node.attrs, op_named(node.op)
        if not isinstance(attrs, EntriesAttrs) or not isinstance(op, SparseOp) or attrs.ordered:
            return [node]
        first = op.first_entries
        sources, targets = node.inputs[first : first + 2]
        if not self._constant(targets):
            return [node]
        in_order = node.model_copy(update={"attrs": attrs.model_copy(update={"ordered": True})})
        order = self._order(targets)
        if bool((np.diff(order) > 0).all()):
            return [in_order]
        if not self._constant(sources):
            return [node]
        node, inputs = in_order, [*node.inputs]
        inputs[first] = self._taken(sources, "sources", targets)
        inputs[first + 1] = self._taken(targets, "targets", targets)
        if node.op == "sddmm":
            return self._moved_back(node.model_copy(update={"inputs": tuple(inputs)}), targets)
        before: list[Node] = []
        for place, weights in enumerate(inputs[first + 2 :], first + 2):
            if self._constant(weights):
                inputs[place] = self._taken(weights, "weights", targets)
                continue
            places = self._stored("places", order, "", targets)
            inputs[place] = f"{weights}.by.{places}"
            if inputs[place] not in moved:
                before = [self._move(node, weights, places, inputs[place])]
                moved.add(inputs[place])
        return [*before, node.model_copy(update={"inputs": tuple(inputs)})]

    def _order(self, targets: str) -> Array:
        if targets not in self._orders:
            self._orders[targets] = np.argsort(self._contents(targets), kind="stable")
        return self._orders[targets]

    def _moved_back(self, node: Node, targets: str) -> list[Node]:
        """The products of entries in order, and these where they were before."""
        order = self._order(targets)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(ranks))
        (result,) = node.outputs
        inner = f"{result}.in_order"
        self.values[inner] = self.values[result].model_copy(update={"id": inner, "gradient_of": ""})
        back = self._move(node, inner, self._stored("ranks", ranks, "", targets), result)
        return [node.model_copy(update={"outputs": (inner,)}), back]

    def _move(self, beside: Node, x: str, places: str, result: str) -> Node:
        """result[i] = x[places[i]]."""
        if result not in self.values:
            role = Role.GRADIENT if beside.phase == "backward" else Role.ACTIVATION
            self.values[result] = Value(id=result, type=self.values[x].type, role=role)
        name = f"{beside.id}.moved"
        update = {"id": name, "op": "embedding", "attrs": EmbeddingAttrs(), "inputs": (x, places), "outputs": (result,)}
        return beside.model_copy(update=update)

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
