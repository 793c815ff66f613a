"""What nobody reads is not computed: a slice of a result becomes slices of what the result is made of.

    norm(x)[:, 0]     a class token: of the last block, projection, norms and layers behind the attention run on one
                      row of every image or sentence, and the attention on one query
    head(x)[:, :-1]   the rows of logits that have a next word: x is sliced, which is narrower

Ops whose elements along the axis do not depend on each other take part: element-wise ones, linear layers, norms, sums
and softmaxes over other axes, rows of products, views, and the queries of attention. Where a result loses little, the
slice goes up only while what is sliced gets smaller.
"""

from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import Any, NamedTuple

from planner.graph.model import Attrs, Layout, Node, Role, TensorType, Value
from planner.ops import op_named
from planner.ops.attention_base import AttentionAttrs
from planner.ops.broadcast import Broadcast
from planner.ops.copy import PermuteAttrs, SliceAttrs
from planner.ops.elementwise import Elementwise
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.reduce import ReduceAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.strides import MAX_RANK

Parts = tuple[SliceAttrs | None, ...]
"""What is read of every input; None: the whole."""


class _Cut(NamedTuple):
    part: SliceAttrs
    """What is read of the node's first result; nobody reads others."""
    parts: Parts
    result: str
    """The value that the part becomes."""


def narrow(
    nodes: Sequence[Node], values: MutableMapping[str, Value], wanted: Collection[str], unique: Callable[[str], str]
) -> list[Node]:
    """The forward nodes, computing what is read of their results alone. `wanted`: values that must stay; `unique`: ids
    for new nodes. Adds to `values`, and changes the types of those that get smaller."""
    cuts = _cuts(nodes, values, wanted)
    if not cuts:
        return list(nodes)
    smaller = {n.outputs[0]: cuts[n.id].result for n in nodes if n.id in cuts}
    renamed: dict[str, str] = {}
    slices: dict[tuple[str, SliceAttrs], str] = {}
    found: list[Node] = []

    def part_of(value: str, part: SliceAttrs | None, node: Node) -> str:
        if part is not None and value in smaller:
            return smaller[value]
        value = renamed.get(value, value)
        if part is None:
            return value
        if (value, part) not in slices:
            name = unique(f"{node.id}.part")
            (type_,) = op_named("slice").infer(part, [values[value].type])
            slices[value, part] = y = f"{name}.y"
            values[y] = Value(id=y, type=type_, role=Role.ACTIVATION)
            found.append(Node(id=name, op="slice", inputs=(value,), outputs=(y,), attrs=part, origin=node.origin))
        return slices[value, part]

    for node in nodes:
        if node.op == "slice" and node.inputs[0] in smaller:
            renamed[node.outputs[0]] = smaller[node.inputs[0]]
        elif node.id in cuts:
            part, parts, result = cuts[node.id]
            inputs = tuple(part_of(v, p, node) for v, p in zip(node.inputs, parts, strict=True))
            outputs, attrs = (result, *node.outputs[1:]), _attrs(node, part)
            types = op_named(node.op).infer(attrs, [values[v].type for v in inputs])
            for output, type_ in zip(outputs, types, strict=True):
                values[output] = values[output].model_copy(update={"type": type_})
            found.append(node.model_copy(update={"inputs": inputs, "outputs": outputs, "attrs": attrs}))
        else:
            inputs = tuple(renamed.get(v, v) for v in node.inputs)
            if isinstance(node.attrs, SliceAttrs) and node.op == "slice":
                slices.setdefault((inputs[0], node.attrs), node.outputs[0])
            found.append(node.model_copy(update={"inputs": inputs}))
    return found


def _cuts(nodes: Sequence[Node], values: Mapping[str, Value], wanted: Collection[str]) -> dict[str, _Cut]:
    """The nodes of whose results only a part is read, and what they then read."""
    readers: dict[str, list[tuple[Node, int]]] = {}
    for node in nodes:
        for index, value in enumerate(node.reads):
            readers.setdefault(value, []).append((node, index))
    cuts: dict[str, _Cut] = {}
    for node in reversed(nodes):
        if node.op == "slice" or node.updates or not node.outputs:
            continue
        y, *others = node.outputs
        if y in wanted or any(v in wanted or readers.get(v) for v in others):
            continue
        of_y = readers.get(y, [])
        asked = {_asked(reader, index, cuts) for reader, index in of_y}
        part = asked.pop() if len(asked) == 1 else None
        parts = _parts(node, part, values) if part is not None else None
        if part is None or parts is None or not _worth(node, part, parts, values):
            continue
        results = [n.outputs[0] for n, _ in of_y if n.op == "slice" and n.outputs[0] in wanted]
        if len(results) < 2:
            cuts[node.id] = _Cut(part, parts, results[0] if results else y)
    return _without_lone_sums(nodes, cuts)


def _asked(reader: Node, index: int, cuts: Mapping[str, _Cut]) -> SliceAttrs | None:
    if reader.op == "slice" and isinstance(reader.attrs, SliceAttrs):
        return reader.attrs
    parts = cuts[reader.id].parts if reader.id in cuts else ()
    return parts[index] if index < len(parts) else None


def _without_lone_sums(nodes: Sequence[Node], cuts: dict[str, _Cut]) -> dict[str, _Cut]:
    """Where several operands of an element-wise node would be sliced and none of them gets smaller, one slice of the
    result is less."""
    smaller: set[str] = set()
    kept: dict[str, _Cut] = {}
    for node in nodes:
        cut = cuts.get(node.id)
        if cut is not None:
            sliced = {v for v, p in zip(node.inputs, cut.parts, strict=True) if p is not None}
            if len(sliced) < 2 or sliced & smaller or not isinstance(op_named(node.op), Elementwise):
                kept[node.id] = cut
                smaller.add(node.outputs[0])
    return kept


def _worth(node: Node, part: SliceAttrs, parts: Parts, values: Mapping[str, Value]) -> bool:
    y = values[node.outputs[0]].type
    if 2 * _taken(part) <= y.shape[part.axis]:
        return True
    inputs = {v: p for v, p in zip(node.inputs, parts, strict=True) if p is not None}
    return sum(_bytes(values[v].type, p) for v, p in inputs.items()) < _bytes(y, part)


def _taken(part: SliceAttrs) -> int:
    """How many places of the axis."""
    return len(range(part.start, part.stop, part.step))


def _bytes(type_: TensorType, part: SliceAttrs) -> int:
    return type_.bytes // type_.shape[part.axis] * _taken(part)


def _parts(node: Node, part: SliceAttrs, values: Mapping[str, Value]) -> Parts | None:
    """What the node reads to make this part of its result; None: everything, or that is not known."""
    y, inputs = values[node.outputs[0]].type, [values[v].type for v in node.inputs]
    if not inputs or any(t.layout is not Layout.ROW_MAJOR for t in (y, *inputs)):
        return None
    if any(sum(d > 1 for d in t.shape) > MAX_RANK for t in inputs):
        return None
    op = op_named(node.op)
    if isinstance(op, Broadcast):
        return tuple(_aligned(part, y, t) for t in inputs)
    if isinstance(op, Elementwise) and all(t.shape == y.shape for t in inputs):
        return (part,) * len(inputs)
    if node.op == "attention" and isinstance(node.attrs, AttentionAttrs):
        return _attended(node.attrs, part, y, inputs)
    rule = _RULES.get(node.op)
    axis = rule(node.attrs, part.axis, y.shape, inputs[0].shape) if rule else None
    if axis is None:
        return None
    return (_along(part, axis), *(None for _ in inputs[1:]))


def _attended(attrs: AttentionAttrs, part: SliceAttrs, y: TensorType, inputs: Sequence[TensorType]) -> Parts | None:
    """Some queries, and their rows of a mask. Of causal attention the last query, which sees all keys."""
    queries = y.shape[-2]
    if part.axis != len(y.shape) - 2 or (attrs.causal and (part.start, inputs[1].shape[-2]) != (queries - 1, queries)):
        return None
    return (part, None, None, *(_aligned(part, y, mask) for mask in inputs[3:]))


def _along(part: SliceAttrs, axis: int) -> SliceAttrs:
    return part.model_copy(update={"axis": axis})


def _aligned(part: SliceAttrs, y: TensorType, x: TensorType) -> SliceAttrs | None:
    """Of an operand whose dimensions are aligned to the right."""
    axis = part.axis - len(y.shape) + len(x.shape)
    return _along(part, axis) if axis >= 0 and x.shape[axis] == y.shape[part.axis] else None


Shape = tuple[int, ...]
Rule = Callable[[Any, int, Shape, Shape], int | None]
"""(attributes, an axis of the result, the result's shape, the first input's) -> which axis of the first input is read
in part; None: in whole. Other inputs are read in whole."""


def _same_but_last(attrs: Attrs, axis: int, y: Shape, x: Shape) -> int | None:
    return axis if axis < len(y) - 1 else None


def _normalized(attrs: LayerNormAttrs, axis: int, y: Shape, x: Shape) -> int | None:
    return axis if axis < len(y) - attrs.dims else None


def _permuted(attrs: PermuteAttrs, axis: int, y: Shape, x: Shape) -> int | None:
    return attrs.axes[axis]


def _reshaped(attrs: ReshapeAttrs, axis: int, y: Shape, x: Shape) -> int | None:
    """Where the axis is one of both shapes."""
    outer = prod(y[:axis])
    return next((a for a, extent in enumerate(x) if extent == y[axis] and prod(x[:a]) == outer), None)


def _reduced(attrs: ReduceAttrs, axis: int, y: Shape, x: Shape) -> int | None:
    if attrs.keepdims:
        return axis
    return [a for a in range(len(x)) if a not in attrs.axes][axis]


def _rows(attrs: MatmulAttrs, axis: int, y: Shape, x: Shape) -> int | None:
    if axis != len(y) - 2:
        return None
    return len(x) - (1 if attrs.transpose_a else 2)


_RULES: Mapping[str, Rule] = {
    "detach": lambda attrs, axis, y, x: axis,
    "linear": _same_but_last,
    "softmax": _same_but_last,
    "log_softmax": _same_but_last,
    "layer_norm": _normalized,
    "permute": _permuted,
    "reshape": _reshaped,
    "reduce_sum": _reduced,
    "reduce_mean": _reduced,
    "matmul": _rows,
}


def _attrs(node: Node, part: SliceAttrs) -> Attrs:
    if isinstance(node.attrs, AttentionAttrs):
        return node.attrs.model_copy(update={"causal": False})
    if not isinstance(node.attrs, ReshapeAttrs):
        return node.attrs
    shape = list(node.attrs.shape)
    shape[part.axis] = _taken(part)
    return ReshapeAttrs(shape=tuple(shape))
