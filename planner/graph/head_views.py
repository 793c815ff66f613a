"""Attention reads queries, keys and values where linear layers write them, and writes its result where one reads it.

    linear -> split -> reshape, permute -> attention -> permute -> linear       linear -> attention -> linear
    permute -> linear -> ... attention ... -> linear -> permute                 linear -> ... attention ... -> linear

The second: sequences first for attention alone, as PyTorch's multi-head attention has them; rows of a linear layer may
be in any order. Left alone is what no view can say (ops/head_views.py), and what anybody else reads in between.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from planner.graph.model import Layout, Node, Value
from planner.graph.strided import Strided, all_of
from planner.ops.copy import PermuteAttrs
from planner.ops.head_views import HeadView, fill
from planner.ops.split import SplitAttrs

Shape = tuple[int, ...]


class _Step(NamedTuple):
    """A node that shows elements in another way, between a value that is nearer to the attention and another."""

    node: Node
    near: str
    shape: Shape
    """The nearer value's, or that of what a linear layer makes of it."""
    far: str


class _Place(NamedTuple):
    """Where an operand, or the result, can be."""

    value: str
    shape: Shape
    """The value's then."""
    view: HeadView
    layer: Node | None
    """The linear layer that makes or reads the value, as it is when its rows are in the order of its other side."""
    steps: Sequence[_Step]
    """From the attention to there, and on to the layer's other side."""


class _Tensor(NamedTuple):
    """What q, k or v, or several of them, are read from."""

    value: str
    places: Mapping[str, _Place]


def view_heads(nodes: Sequence[Node], values: MutableMapping[str, Value], wanted: Collection[str]) -> list[Node]:
    """The forward nodes with every attention on views of other tensors, where that saves a copy; what nobody reads any
    more is left. `wanted`: values that must stay. Changes the shapes of values whose rows are in another order then."""
    finder = _Finder(nodes, values, wanted)
    changed: dict[str, Node] = {}
    gone: set[str] = set()
    for node in nodes:
        if node.op != "attention":
            continue
        tensors, result = finder.tensors(node), finder.result(node)
        changed[node.id] = _on_views(node, tensors, result)
        gone |= {s.node.id for s in result.steps} if result else set()
        for place in (*(p for t in tensors for p in t.places.values()), *([result] if result else [])):
            if place.layer is not None:
                type_ = values[place.value].type.model_copy(update={"shape": place.shape})
                values[place.value] = values[place.value].model_copy(update={"type": type_})
                changed[place.layer.id] = place.layer
    return [changed.get(n.id, n) for n in nodes if n.id not in gone]


def _on_views(node: Node, tensors: Sequence[_Tensor], result: _Place | None) -> Node:
    source = {name: i for i, tensor in enumerate(tensors) for name in tensor.places}
    free = iter([i for i, tensor in enumerate(tensors) if not tensor.places])
    update: dict[str, object] = {"sources": tuple(source[n] if n in source else next(free) for n in "qkv")}
    update |= {name: place.view for tensor in tensors for name, place in tensor.places.items()}
    inputs = [*(t.value for t in tensors), *node.inputs[3:]]
    if result is None:
        return node.model_copy(update={"attrs": node.attrs.model_copy(update=update), "inputs": tuple(inputs)})
    update |= {"y": result.view, "result": result.shape}
    outputs = (result.value, *node.outputs[1:])
    return node.model_copy(
        update={"attrs": node.attrs.model_copy(update=update), "inputs": tuple(inputs), "outputs": outputs}
    )


class _Finder:
    def __init__(self, nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str]) -> None:
        self._values, self._wanted = values, wanted
        self._maker = {v: n for n in nodes for v in n.outputs}
        self._readers: dict[str, list[Node]] = {}
        self._taken: set[str] = set()
        """Nodes that are no more, behind an attention."""
        for node in nodes:
            for value in node.reads:
                self._readers.setdefault(value, []).append(node)

    # -- operands --------------------------------------------------------------------------------------------------
    def tensors(self, node: Node) -> list[_Tensor]:
        """What an attention reads q, k and v from, in this order."""
        own = dict(zip("qkv", node.inputs, strict=False))
        found = {name: self._operand(value, True) for name, value in own.items()}
        together: dict[tuple[str, Shape], list[str]] = {}
        for name, place in found.items():
            if place is not None:
                together.setdefault((place.value, place.shape), []).append(name)
        tensors: dict[str, _Tensor] = {}
        for (value, shape), names in together.items():
            places = {name: place for name in names if (place := found[name])}
            if self._filled(value, shape, [p.view for p in places.values()]):
                tensors |= dict.fromkeys(names, _Tensor(value, places))
        for name, value in own.items():
            if name not in tensors:
                place = self._operand(value, False)
                fits = place is not None and self._filled(place.value, place.shape, [place.view])
                tensors[name] = _Tensor(place.value, {name: place}) if place and fits else _Tensor(value, {})
        listed: list[_Tensor] = []
        for name in "qkv":
            if not tensors[name].places or all(t is not tensors[name] for t in listed):
                listed.append(tensors[name])
        return listed

    def _filled(self, value: str, shape: Shape, views: Sequence[HeadView]) -> bool:
        return fill(views, self._values[value].type.model_copy(update={"shape": shape}))

    def _operand(self, value: str, splits: bool) -> _Place | None:
        """The value farthest from the attention of which an operand is a view that nobody else has a part in.
        `splits`: or others of its operands."""
        steps: list[_Step] = []
        while (node := self._made_for_one(value, "reshape", "permute", *(["split"] if splits else []))) is not None:
            steps.append(_Step(node, value, self._shape(value), node.inputs[0]))
            value = node.inputs[0]
        layer = self._made_for_one(value, "linear")
        if layer is not None:
            before: list[_Step] = []
            x, features = layer.inputs[0], self._shape(value)[-1]
            while (node := self._moves_rows(self._maker.get(x))) is not None:
                before.append(_Step(node, x, (*self._shape(x)[:-1], features), node.inputs[0]))
                x = node.inputs[0]
            if (found := self._beyond(layer, value, steps, before)) is not None:
                return found
        return self._farthest(steps)

    def _beyond(
        self, layer: Node, value: str, steps: Sequence[_Step], moved: Sequence[_Step], back: bool = False
    ) -> _Place | None:
        """The value between a layer and an attention, where the layer's rows are those on its other side. `moved`: the
        nodes there, of the shapes that the value would have."""
        for count in range(len(moved), 0, -1):
            far, passed = moved[count - 1].far, [*steps, *moved[:count]]
            shape = (*self._shape(far)[:-1], self._shape(value)[-1])
            if _moves(moved[:count]) and (view := _view(shape, passed, back)):
                other = {"outputs": (far,)} if back else {"inputs": (far, *layer.inputs[1:])}
                return _Place(value, shape, view, layer.model_copy(update=other), passed)
        return None

    def _farthest(self, steps: Sequence[_Step], back: bool = False) -> _Place | None:
        for count in range(len(steps), 0, -1):
            far = steps[count - 1].far
            if _moves(steps[:count]) and (view := _view(self._shape(far), steps[:count], back)):
                return _Place(far, self._shape(far), view, None, steps[:count])
        return None

    def _made_for_one(self, value: str, *ops: str) -> Node | None:
        """What makes a value that is read once; of a split, all of whose parts are."""
        node = self._maker.get(value)
        if node is None or node.op not in ops or node.id in self._taken:
            return None
        alone = all(len(self._readers.get(v, ())) == 1 and v not in self._wanted for v in node.outputs)
        return node if alone and self._in_rows(*node.outputs, node.inputs[0]) else None

    # -- the result ------------------------------------------------------------------------------------------------
    def result(self, node: Node) -> _Place | None:
        """The value farthest from the attention that can be what it writes. Nothing else is to be found behind it."""
        found = self._result(node)
        if found is not None:
            self._taken |= {s.node.id for s in found.steps} | ({found.layer.id} if found.layer else set())
        return found

    def _result(self, node: Node) -> _Place | None:
        value = node.outputs[0]
        steps: list[_Step] = []
        while (reader := self._reader(value)) is not None and reader.op in ("reshape", "permute"):
            steps.append(_Step(reader, value, self._shape(value), reader.outputs[0]))
            value = reader.outputs[0]
        if reader is not None and reader.op == "linear" and value == reader.inputs[0]:
            behind: list[_Step] = []
            y, features = reader.outputs[0], self._shape(value)[-1]
            while (node_behind := self._moves_rows(self._reader(y))) is not None:
                behind.append(_Step(node_behind, y, (*self._shape(y)[:-1], features), node_behind.outputs[0]))
                y = node_behind.outputs[0]
            if (found := self._beyond(reader, value, steps, behind, back=True)) is not None:
                return found
        return self._farthest(steps, back=True)

    def _reader(self, value: str) -> Node | None:
        """The only one."""
        readers = self._readers.get(value, [])
        alone = len(readers) == 1 and value not in self._wanted
        return readers[0] if alone and self._in_rows(value, *readers[0].outputs) else None

    def _moves_rows(self, node: Node | None) -> Node | None:
        """The node, if it only shows rows in another order."""
        if node is None or node.op not in ("reshape", "permute") or node.id in self._taken:
            return None
        if not self._in_rows(*node.inputs, *node.outputs):
            return None
        before, after = self._shape(node.inputs[0]), self._shape(node.outputs[0])
        if isinstance(node.attrs, PermuteAttrs):
            return node if node.attrs.axes[-1] == len(before) - 1 else None
        return node if before[-1:] == after[-1:] else None

    def _shape(self, value: str) -> Shape:
        return self._values[value].type.shape

    def _in_rows(self, *values: str) -> bool:
        return all(self._values[v].type.layout is Layout.ROW_MAJOR for v in values)


def _moves(steps: Sequence[_Step]) -> bool:
    return any(s.node.op != "reshape" for s in steps)


def _view(shape: Shape, steps: Sequence[_Step], back: bool = False) -> HeadView | None:
    """What is nearest to the attention as a view of the value of this shape that is farthest from it. `back`: of what
    reads the nearest, which the steps then show in another way."""
    seen: Strided | None = all_of(shape)
    for step in reversed(steps):
        if seen is None:
            return None
        attrs = step.node.attrs
        if isinstance(attrs, PermuteAttrs):
            axes = attrs.axes
            seen = seen.permuted([axes.index(i) for i in range(len(axes))] if back else axes)
        elif isinstance(attrs, SplitAttrs):
            part = step.node.outputs.index(step.near)
            seen = seen.part(attrs.axis, sum(attrs.sizes[:part]), attrs.sizes[part])
        else:
            seen = seen.reshaped(step.shape)
    return seen.heads() if seen else None
