"""What a graph network computes along its edges becomes products of sparse matrices, with no value per edge and column.

    embedding(x, sources) -> mul by weights -> embedding_backward(., targets)     spmm(x, sources, targets, weights)
    embedding(a, sources) -> mul by embedding(b, targets) -> reduce_sum           sddmm(a, b, sources, targets)

The first's product may be missing, and views may stand in between. The node takes the id and the output of the last
one, so nothing behind it changes. Left alone is what anybody else reads in between, and rows of a table that is
trained: their gradient is added to the table where it lies.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import NamedTuple

from planner.graph.joining import with_joined
from planner.graph.model import Node, Role, TensorType, Value
from planner.ops.embedding import EmbeddingAttrs, EmbeddingGradAttrs
from planner.ops.reduce import ReduceAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.sparse import SddmmAttrs, SpmmAttrs

NARROWEST = 4
"""Columns of a head: with fewer, weights would be read about as often as what they weight."""


class _Rows(NamedTuple):
    """Rows that a node picks for the entries of a sparse matrix."""

    x: str
    ids: str
    columns: int
    members: tuple[Node, ...]
    """The node, and the views of what it picks."""


class _Product(NamedTuple):
    attrs: SpmmAttrs | SddmmAttrs
    inputs: tuple[str, ...]
    """Without weights."""
    members: tuple[Node, ...]
    """What it stands for, but for the last node."""
    weights: str = ""
    """Empty: there are none."""
    heads: int = 1


def join_messages(nodes: Sequence[Node], values: MutableMapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The forward nodes with what goes along edges in products of sparse matrices. `wanted`: values that must stay.
    Adds views to `values`."""
    readers: dict[str, int] = {}
    for node in nodes:
        for value in node.reads:
            readers[value] = readers.get(value, 0) + 1
    own = {v: n for n in nodes for v in n.outputs if readers.get(v) == 1 and v not in wanted}
    finder = _Finder(values, own)
    return with_joined(nodes, finder.product, lambda last, found: _joined(last, found, values))


class _Finder:
    def __init__(self, values: Mapping[str, Value], own: Mapping[str, Node]) -> None:
        self._values, self._own = values, own
        """`own`: who made a value that nobody else reads."""

    def product(self, last: Node) -> _Product | None:
        """What the node ends, if that is a product of a sparse matrix."""
        return self.sum(last) or self.dots(last)

    def sum(self, last: Node) -> _Product | None:
        """What the node adds up, if these are rows of other nodes."""
        if not isinstance(last.attrs, EmbeddingGradAttrs) or last.attrs.padding_index >= 0:
            return None
        rows, targets = last.inputs
        attrs, entries = SpmmAttrs(rows=last.attrs.entries), self._shape(targets)
        if (picked := self._picked(rows)) and self._shape(picked.ids) == entries:
            return _Product(attrs, (picked.x, picked.ids, targets), picked.members)
        product, views = self._behind_views(rows)
        if product is None or product.op != "mul":
            return None
        for message, weights in (product.inputs, product.inputs[::-1]):
            picked, shape = self._picked(message), self._shape(product.outputs[0])
            if picked is None or self._shape(picked.ids) != entries or self._shape(message) != shape:
                continue
            heads = _heads(shape, self._shape(weights), entries[0])
            if not _fits(picked, heads):
                continue
            members = (*picked.members, product, *views)
            return _Product(attrs, (picked.x, picked.ids, targets), members, weights, heads)
        return None

    def dots(self, last: Node) -> _Product | None:
        """Products of two rows each, if the node makes such."""
        product = self._own.get(last.inputs[0]) if last.op == "reduce_sum" else None
        if product is None or product.op != "mul":
            return None
        assert isinstance(last.attrs, ReduceAttrs)
        shape = self._shape(product.outputs[0])
        if last.attrs.axes != (len(shape) - 1,) or any(self._shape(v) != shape for v in product.inputs):
            return None
        a, b = map(self._picked, product.inputs)
        if a is None or b is None or a.columns != b.columns or self._shape(a.ids) != self._shape(b.ids):
            return None
        heads, rest = divmod(prod(shape[:-1]), self._shape(a.ids)[0])
        if rest or not _fits(a, heads):
            return None
        members = (*a.members, *b.members, product)
        return _Product(SddmmAttrs(heads=heads), (a.x, b.x, a.ids, b.ids), members)

    def _shape(self, value: str) -> tuple[int, ...]:
        return self._values[value].type.shape

    def _picked(self, value: str) -> _Rows | None:
        """The rows that the value is a view of, one for each entry of a list."""
        node, views = self._behind_views(value)
        if node is None or node.op != "embedding" or node.attrs != EmbeddingAttrs():
            return None
        x, ids = node.inputs
        fits = len(self._shape(ids)) == 1 and self._values[x].role is not Role.PARAMETER
        return _Rows(x, ids, self._shape(x)[1], (node, *views)) if fits else None

    def _behind_views(self, value: str) -> tuple[Node | None, tuple[Node, ...]]:
        """Who made the value, or what it is a view of; the views."""
        views: list[Node] = []
        node = self._own.get(value)
        while node is not None and node.op == "reshape":
            views.append(node)
            node = self._own.get(node.inputs[0])
        return node, tuple(views)


def _fits(picked: _Rows, heads: int) -> bool:
    """Whether so many heads divide the rows, and each is worth it."""
    return heads == 1 or (heads > 1 and picked.columns % heads == 0 and picked.columns >= NARROWEST * heads)


def _heads(shape: tuple[int, ...], weights: tuple[int, ...], entries: int) -> int:
    """How many weights each entry has, in the order of its columns, where messages of this shape are multiplied by
    weights of that one; 0: they are something else."""
    if len(weights) > len(shape):
        return 0
    padded = (*(1,) * (len(shape) - len(weights)), *weights)
    wide = next((i for i in range(len(shape), 0, -1) if padded[i - 1] != 1), 0)
    heads, rest = divmod(prod(padded), entries)
    return heads if padded[:wide] == shape[:wide] and not rest else 0


def _joined(last: Node, found: _Product, values: MutableMapping[str, Value]) -> list[Node]:
    """The product in the place of the last node, between views where its weights or its result have another shape."""
    made: list[Node] = []

    def value(part: str, shape: tuple[int, ...]) -> str:
        name = f"{last.id}.{part}"
        values[name] = Value(id=name, type=TensorType(shape=shape), role=Role.ACTIVATION)
        return name

    def view(name: str, x: str, result: str) -> None:
        attrs = ReshapeAttrs(shape=values[result].type.shape)
        update = {"id": name, "op": "reshape", "attrs": attrs, "inputs": (x,), "outputs": (result,)}
        made.append(last.model_copy(update=update))

    inputs, (result,) = found.inputs, last.outputs
    op, outputs = "spmm", result
    if found.weights:
        weights, shape = found.weights, (*values[inputs[1]].type.shape, found.heads)
        if values[weights].type.shape != shape:
            weights = value("weights", shape)
            view(weights, found.weights, weights)
        inputs = (*inputs, weights)
    if isinstance(found.attrs, SddmmAttrs):
        op, shape = "sddmm", (*values[inputs[2]].type.shape, found.attrs.heads)
        outputs = result if values[result].type.shape == shape else value("products", shape)
    update = {"op": op, "attrs": found.attrs, "inputs": inputs, "outputs": (outputs,)}
    made.append(last.model_copy(update=update))
    if outputs != result:
        view(f"{last.id}.view", outputs, result)
    return made
