"""Messages that a graph network sends along its edges and adds up at their ends become one product of a sparse matrix.

    embedding(x, sources) -> mul by weights -> embedding_backward(., targets)     spmm(x, sources, targets, weights)

The product may be missing, and views may stand in between. The node takes the id and the output of the last one, so
nothing behind it changes. Left alone is what anybody else reads in between, and rows of a table that is trained: their
gradient is added to the table where it lies.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import NamedTuple

from planner.graph.model import Node, Role, Value
from planner.ops.embedding import EmbeddingAttrs, EmbeddingGradAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.sparse import SpmmAttrs

NARROWEST = 4
"""Columns of a head: with fewer, weights would be read about as often as what they weight."""


class _Messages(NamedTuple):
    picked: Node
    weights: str
    """Empty: there are none."""
    heads: int
    members: tuple[Node, ...]
    """What the node stands for, but for the last addition."""


def join_messages(nodes: Sequence[Node], values: MutableMapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The forward nodes with all messages in products of sparse matrices. `wanted`: values that must stay. Adds views
    of weights to `values`."""
    maker = {v: n for n in nodes for v in n.outputs}
    readers: dict[str, int] = {}
    for node in nodes:
        for value in node.reads:
            readers[value] = readers.get(value, 0) + 1
    own = {v: n for v, n in maker.items() if readers.get(v) == 1 and v not in wanted}
    gone: set[str] = set()
    joined: dict[str, list[Node]] = {}
    for last in nodes:
        found = _messages(last, values, own)
        if found is not None:
            gone |= {n.id for n in found.members}
            joined[last.id] = _joined(last, found, values)
    return [n for node in nodes if node.id not in gone for n in joined.get(node.id, [node])]


def _messages(last: Node, values: Mapping[str, Value], own: Mapping[str, Node]) -> _Messages | None:
    """What the node adds up, if these are messages. `own`: who made a value that nobody else reads."""
    if not isinstance(last.attrs, EmbeddingGradAttrs) or last.updates or last.attrs.padding_index >= 0:
        return None
    rows, targets = last.inputs
    product, views = _behind_views(rows, own)
    if product is None:
        return None
    if product.op != "mul":
        return _picked(product, targets, "", 1, views, values)
    for message, weights in (product.inputs, product.inputs[::-1]):
        picked, more = _behind_views(message, own)
        shape = values[product.outputs[0]].type.shape
        heads = _heads(shape, values[weights].type.shape, values[targets].type.shape[0])
        if picked is not None and heads and values[message].type.shape == shape:
            found = _picked(picked, targets, weights, heads, (*views, product, *more), values)
            if found is not None:
                return found
    return None


def _behind_views(value: str, own: Mapping[str, Node]) -> tuple[Node | None, tuple[Node, ...]]:
    """Who made the value, or what it is a view of; the views."""
    views: list[Node] = []
    node = own.get(value)
    while node is not None and node.op == "reshape":
        views.append(node)
        node = own.get(node.inputs[0])
    return node, tuple(views)


def _picked(
    node: Node, targets: str, weights: str, heads: int, members: tuple[Node, ...], values: Mapping[str, Value]
) -> _Messages | None:
    """Rows that the node picks, as messages."""
    if node.op != "embedding" or node.attrs != EmbeddingAttrs():
        return None
    x, sources = (values[v] for v in node.inputs)
    columns = x.type.shape[1]
    narrow = heads > 1 and columns < NARROWEST * heads
    fits = sources.type.shape == values[targets].type.shape and len(sources.type.shape) == 1 and columns % heads == 0
    return (
        _Messages(node, weights, heads, (*members, node))
        if fits and not narrow and x.role is not Role.PARAMETER
        else None
    )


def _heads(shape: tuple[int, ...], weights: tuple[int, ...], entries: int) -> int:
    """How many weights each entry has, in the order of its columns, where messages of this shape are multiplied by
    weights of that one; 0: they are something else."""
    if len(weights) > len(shape):
        return 0
    padded = (*(1,) * (len(shape) - len(weights)), *weights)
    wide = next((i for i in range(len(shape), 0, -1) if padded[i - 1] != 1), 0)
    count = prod(padded)
    return count // entries if padded[:wide] == shape[:wide] and count % entries == 0 else 0


def _joined(last: Node, found: _Messages, values: MutableMapping[str, Value]) -> list[Node]:
    """The product in the place of the last addition, behind a view of the weights where they have another shape."""
    (x, sources), (_, targets) = found.picked.inputs, last.inputs
    inputs, made = [x, sources, targets], []
    if found.weights:
        weights, shape = found.weights, (values[targets].type.shape[0], found.heads)
        if values[weights].type.shape != shape:
            type_ = values[weights].type.model_copy(update={"shape": shape})
            view = f"{last.id}.weights"
            values[view] = Value(id=view, type=type_, role=Role.ACTIVATION)
            update = {"id": view, "op": "reshape", "attrs": ReshapeAttrs(shape=shape), "outputs": (view,)}
            made.append(last.model_copy(update={**update, "inputs": (weights,)}))
            weights = view
        inputs.append(weights)
    rows = values[last.outputs[0]].type.shape[0]
    made.append(last.model_copy(update={"op": "spmm", "attrs": SpmmAttrs(rows=rows), "inputs": tuple(inputs)}))
    return made
