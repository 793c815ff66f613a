"""ONNX operators that TVM's importer would not read, or otherwise than ONNX means them.

A few that TVM breaks up into others that training has no use for (local response normalisation as a three-dimensional
average pool) are passed on whole.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, Protocol

import numpy as np
from tvm import relax

from planner.ops.base import Array


class Importer(Protocol):
    """What operators need of the importer, on its current node."""

    bb: Any
    version: int

    def constant(self, position: int) -> Array | None: ...

    def pass_on(self, op: str, data: list[Any], attributes: dict[str, Any], type_: Any) -> Any: ...


def _pairwise(operator: Callable[[Any, Any], Any]) -> Callable[[Importer, list[Any], dict[str, Any]], Any]:
    """Sum, Max and Min of several tensors, two at a time."""
    return lambda importer, inputs, attrs: reduce(lambda a, b: importer.bb.normalize(operator(a, b)), inputs)


def _mean(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    total = _pairwise(relax.op.add)(importer, inputs, attrs)
    return relax.op.divide(total, relax.const(len(inputs), inputs[0].ty.dtype))


def _whole(op: str) -> Callable[[Importer, list[Any], dict[str, Any]], Any]:
    """An operator of one tensor that keeps its shape, passed on with its attributes."""

    return lambda importer, inputs, attrs: importer.pass_on(op, inputs[:1], attrs, inputs[0].ty)


def _pad(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    sizes, value, axes = (importer.constant(i) for i in (1, 2, 3))
    pads = attrs.get("pads", attrs.get("paddings")) if sizes is None else sizes.tolist()
    if pads is None or any(c is None and i is not None for c, i in zip((value, axes), inputs[2:4], strict=False)):
        raise NotImplementedError("its sizes, value or axes are no constants")
    if axes is not None:  # pads has these axes' begins and then their ends
        rank, given = len(inputs[0].ty.shape.values), pads
        pads = [0] * 2 * rank
        for i, axis in enumerate(axes.tolist()):
            pads[axis % rank], pads[rank + axis % rank] = given[i], given[len(axes) + i]
    mode = attrs.get("mode", b"constant").decode()
    fill = attrs.get("value", 0.0) if value is None else value.reshape(-1)[0]
    held = {"pads": pads, "mode": mode, "value": float(fill)}
    rank = len(pads) // 2
    shape = [int(d) + pads[i] + pads[rank + i] for i, d in enumerate(inputs[0].ty.shape.values)]
    return importer.pass_on("Pad", inputs[:1], held, relax.TensorType(shape, inputs[0].ty.dtype))


def _tile(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    repeats = importer.constant(1)
    if repeats is None:
        raise NotImplementedError("the number of repetitions is no constant")
    shape = [int(d) * int(r) for d, r in zip(inputs[0].ty.shape.values, repeats, strict=True)]
    type_ = relax.TensorType(shape, inputs[0].ty.dtype)
    return importer.pass_on("Tile", inputs[:1], {"repeats": repeats.tolist()}, type_)


def _clip(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    bounds = {"min": attrs.get("min"), "max": attrs.get("max")}
    for position, name in ((1, "min"), (2, "max")):
        found = importer.constant(position)
        if found is None and len(inputs) > position and inputs[position] is not None:
            raise NotImplementedError(f"the bound {name} is no constant")
        bounds[name] = float(found.reshape(-1)[0]) if found is not None else bounds[name]
    return importer.pass_on("Clip", inputs[:1], bounds, inputs[0].ty)


def _expand(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Both sides may be the ones that grow."""
    wanted = inputs[1].values if isinstance(inputs[1], relax.ShapeExpr) else importer.constant(1)
    if wanted is None:
        raise NotImplementedError("the shape is no constant")
    shape = np.broadcast_shapes(tuple(int(d) for d in inputs[0].ty.shape.values), tuple(map(int, wanted)))
    return relax.op.broadcast_to(inputs[0], list(shape))


def old_slice(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Until opset 9 the bounds are attributes, and the axes may be left out."""
    begin, end = attrs["starts"], attrs["ends"]
    axes = attrs.get("axes", range(len(begin)))
    return relax.op.strided_slice(inputs[0], list(axes), list(begin), list(end))


def _dropout(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Since opset 12 the rate is an input, of which TVM reads no array of one element."""
    rate = importer.constant(1)
    if rate is None and len(inputs) > 1 and inputs[1] is not None:
        raise NotImplementedError("the ratio is no constant")
    return importer.bb.normalize(
        relax.op.nn.dropout(inputs[0], float(attrs.get("ratio", 0.5) if rate is None else rate.reshape(-1)[0]))
    )


def _prelu(importer: Importer, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    return importer.pass_on("PRelu", inputs, {"by_channel": importer.version < 7}, inputs[0].ty)


OWN: dict[str, Callable[[Importer, list[Any], dict[str, Any]], Any]] = {
    "Sum": _pairwise(relax.op.add),
    "Max": _pairwise(relax.op.maximum),
    "Min": _pairwise(relax.op.minimum),
    "Mean": _mean,
    "Pad": _pad,
    "Tile": _tile,
    "Clip": _clip,
    "Dropout": _dropout,
    "Expand": _expand,
    "PRelu": _prelu,
    **{op: _whole(op) for op in ("LRN", "Elu", "Selu", "HardSigmoid", "HardSwish", "Softplus", "Softsign")},
}
"""Operators that are not TVM's to convert."""
_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")
"""Reductions that do something to every element, too."""


def adjusted(importer: Importer, op: str, inputs: Any, attrs: dict[str, Any]) -> dict[str, Any]:
    """Attributes that TVM reads as ONNX means them; inputs may be replaced. What it would leave unread is refused."""
    second = importer.constant(1)
    if op == "ConvTranspose" and "output_shape" in attrs:
        raise NotImplementedError("output_shape")
    if op == "Gemm" and any(len(i.ty.shape.values) != 2 for i in inputs[:2]):
        raise NotImplementedError("its inputs are no matrices")
    if op == "SpaceToDepth" and str(attrs.get("mode", "DCR")) not in ("DCR", "b'DCR'"):
        raise NotImplementedError("mode CRD")
    if op in _COMPOSED and attrs.get("noop_with_empty_axes") and (second is None or not second.size):
        raise NotImplementedError("noop_with_empty_axes without axes")
    if op == "Gather" and second is not None and isinstance(inputs[0], relax.ShapeExpr):
        inputs[1] = relax.const(second)
    if op == "Pow" and second is not None and second.size == 1:
        inputs[1] = relax.const(second.astype(str(inputs[0].ty.dtype)))
    if op in ("Add", "Sub", "Mul", "Div", "Pow") and importer.version < 7 and "axis" in attrs:
        inputs[1] = _aligned(inputs, attrs["axis"])
    return _padded(inputs, attrs) if op == "Conv" else attrs


def _aligned(inputs: list[Any], axis: int) -> Any:
    """The second operand where axis says which dimension of the first its own first belongs to (until opset 6)."""
    rank, shape = len(inputs[0].ty.shape), list(inputs[1].ty.shape)
    return relax.op.reshape(inputs[1], [*shape, *[1] * (rank - axis % rank - len(shape))])


def _padded(inputs: list[Any], attrs: dict[str, Any]) -> dict[str, Any]:
    """A convolution's auto_pad as numbers; TVM would make an operation of its own of it."""
    mode = attrs.get("auto_pad")
    if mode not in (b"SAME_UPPER", b"SAME_LOWER"):
        return attrs
    extents, windows = ([int(d) for d in i.ty.shape.values[2:]] for i in inputs[:2])
    strides, dilations = (attrs.get(k, [1] * len(extents)) for k in ("strides", "dilations"))
    sides = []
    for extent, window, stride, dilation in zip(extents, windows, strides, dilations, strict=True):
        total = max(0, (-(-extent // stride) - 1) * stride + (window - 1) * dilation + 1 - extent)
        less, more = total // 2, total - total // 2
        sides.append((less, more) if mode == b"SAME_UPPER" else (more, less))
    rest = {k: v for k, v in attrs.items() if k != "auto_pad"}
    return {**rest, "pads": [before for before, _ in sides] + [after for _, after in sides]}
