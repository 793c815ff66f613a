"""Distances of all rows of one matrix from all rows of another, spelled out, have no value per pair and feature.

    sub(a [.., n, 1, d], b [.., 1, m, d]) -> square -> reduce_sum over d        distances(a, b)

Means go the same way, behind a scale. The node takes the id and the output of the last one, so nothing behind it
changes. Left alone are differences that somebody else reads, too, as directions are.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import NamedTuple

from planner.graph.joining import with_joined
from planner.graph.model import Attrs, DType, Layout, Node, Role, TensorType, Value
from planner.ops.reduce import ReduceAttrs
from planner.ops.scalar import ScalarAttrs
from planner.ops.shape import ReshapeAttrs


class _Found(NamedTuple):
    sides: tuple[str, str]
    """What a and b are views of."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Theirs, as `distances` takes them."""
    members: tuple[Node, ...]
    """What it stands for, but for the last node."""


def join_distances(nodes: Sequence[Node], values: MutableMapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The forward nodes with distances between rows as one node each. `wanted`: values that must stay. Adds views to
    `values`."""
    finder = _Finder(nodes, values, wanted)
    return with_joined(nodes, finder.distances, lambda last, found: _joined(last, found, values))


class _Finder:
    def __init__(self, nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str]) -> None:
        self._values, self._wanted = values, wanted
        self._maker = {v: n for n in nodes for v in n.outputs}
        self._readers: dict[str, set[str]] = {}
        for node in nodes:
            for value in node.reads:
                self._readers.setdefault(value, set()).add(node.id)

    def distances(self, last: Node) -> _Found | None:
        """What the node adds up, if these are squared differences of rows."""
        if not isinstance(last.attrs, ReduceAttrs):
            return None
        squares = self._alone(last.inputs[0], "square", "mul")
        apart = self._alone(squares.inputs[0], "sub") if squares and len(set(squares.inputs)) == 1 else None
        if squares is None or apart is None:
            return None
        type_, result = self._values[apart.outputs[0]].type, self._values[last.outputs[0]].type
        *lead, n, m, features = (1, 1, 1, *type_.shape)[-max(3, len(type_.shape)) :]
        plain = result.layout is Layout.ROW_MAJOR and type_.dtype is DType.FLOAT32
        if last.attrs.axes != (len(type_.shape) - 1,) or not plain or min(n, m) == 1:
            return None
        batch = prod(lead)
        for first, second in (apart.inputs, apart.inputs[::-1]):
            if (a := self._spread(first, (*lead, n, 1, features))) is None:
                continue
            if b := self._spread(second, (1, m, features)):  # all rows of a stack meet one matrix
                return _Found((a, b), ((batch * n, features), (m, features)), (apart, squares))
            if b := self._spread(second, (*lead, 1, m, features)):
                return _Found((a, b), ((batch, n, features), (batch, m, features)), (apart, squares))
        return None

    def _alone(self, value: str, *ops: str) -> Node | None:
        """Who made a value that only one node reads, if it is one of these ops."""
        node = self._maker.get(value)
        once = len(self._readers.get(value, ())) == 1 and value not in self._wanted
        return node if node is not None and node.op in ops and once else None

    def _spread(self, value: str, shape: tuple[int, ...]) -> str | None:
        """A value of this shape, or a view of it, that the value repeats along the dimension of 1."""
        node = self._maker.get(value)
        if node is not None and node.op == "expand":
            value = node.inputs[0]
            node = self._maker.get(value)
        if _trimmed(self._values[value].type.shape) != _trimmed(shape):
            return None
        if node is not None and node.op == "reshape":
            value = node.inputs[0]
        return value if self._values[value].type.layout is Layout.ROW_MAJOR else None


def _trimmed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without ones in front, which broadcasting adds."""
    first = next((i for i, extent in enumerate(shape) if extent != 1), len(shape))
    return shape[first:]


def _joined(last: Node, found: _Found, values: MutableMapping[str, Value]) -> list[Node]:
    """The distances in the place of the last node, between views, and in front of a scale where it makes means."""
    made: list[Node] = []

    def add(part: str, op: str, attrs: Attrs, inputs: tuple[str, ...], shape: tuple[int, ...]) -> str:
        """A node of its own, whose result has its name."""
        name = f"{last.id}.{part}"
        values[name] = Value(id=name, type=TensorType(shape=shape), role=Role.ACTIVATION)
        update = {"id": name, "op": op, "attrs": attrs, "inputs": inputs, "outputs": (name,)}
        made.append(last.model_copy(update=update))
        return name

    sides = tuple(
        side if values[side].type.shape == shape else add(part, "reshape", ReshapeAttrs(shape=shape), (side,), shape)
        for part, side, shape in zip("ab", found.sides, found.shapes, strict=True)
    )
    (a, b), (result,) = found.shapes, last.outputs
    pairs, wanted = (*a[:-1], b[-2]), values[result].type.shape
    steps: list[tuple[str, str, Attrs, tuple[int, ...]]] = [("distances", "distances", Attrs(), pairs)]
    if wanted != pairs:
        steps.append(("view", "reshape", ReshapeAttrs(shape=wanted), wanted))
    if last.op == "reduce_mean":
        steps.append(("mean", "scale", ScalarAttrs(value=1 / a[-1]), wanted))
    inputs = sides
    for part, op, attrs, shape in steps[:-1]:
        inputs = (add(part, op, attrs, inputs, shape),)
    _, op, attrs, _ = steps[-1]
    made.append(last.model_copy(update={"op": op, "attrs": attrs, "inputs": inputs}))
    return made
