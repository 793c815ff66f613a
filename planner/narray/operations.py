"""What each operation of lazy arrays is, in nodes of a training graph. One entry per operation, by name.

A lowering takes the emitter, the ids of the operands and the operation's fixed arguments (hashable), and returns the id
of the result. The same lowering gives the type of a result when it is recorded, the nodes of a plan, and, by the nodes'
NumPy references, the value where arrays are eager.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.frontends.emitter import Emitter
from planner.ops.conv import ConvAttrs, ConvGradAttrs
from planner.ops.loss import ClassLossAttrs, LossAttrs
from planner.ops.lrn import LrnAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.pool import AvgPoolAttrs, AvgPoolGradAttrs, MaxPoolAttrs, MaxPoolGradAttrs

Lowering = Callable[..., str]
OPERATIONS: dict[str, Lowering] = {}
WINDOW = 255
"""Elements of the largest window of a max pool."""


def operation(*names: str) -> Callable[[Lowering], Lowering]:
    def enter(function: Lowering) -> Lowering:
        OPERATIONS.update(dict.fromkeys(names, function))
        return function

    return enter


def _direct(op: str) -> Lowering:
    return lambda e, *operands: e.op(op, *operands)


for _op in (
    "relu", "tanh", "sigmoid", "exp", "log", "sqrt", "abs", "neg", "square", "reciprocal", "add", "sub", "mul", "div",
    "maximum", "minimum", "tanh_backward", "sigmoid_backward", "relu_backward",
):  # fmt: skip
    OPERATIONS[_op] = _direct(_op)


# -- numbers: a float in the plan, or the id of an input where it changes from run to run -----------------------
@operation("scale")
def _scale(e: Emitter, x: str, number: float | str) -> str:
    return e.op("mul", x, number) if isinstance(number, str) else e.scale(x, number)


@operation("shift")
def _shift(e: Emitter, x: str, number: float | str) -> str:
    return e.op("add", x, number) if isinstance(number, str) else e.shift(x, number)


@operation("power")
def _power(e: Emitter, x: str, exponent: float) -> str:
    return e.power(x, exponent)


@operation("clip")
def _clip(e: Emitter, x: str, low: float | None, high: float | None) -> str:
    return e.clamp(x, low, high)


@operation("fill")
def _fill(e: Emitter, shape: tuple[int, ...], value: float) -> str:
    return e.fill(shape, value)


# -- shapes and products ---------------------------------------------------------------------------------------
@operation("matmul")
def _matmul(e: Emitter, a: str, b: str) -> str:
    """A transposed operand is read as it lies."""
    (x, across), (y, down) = _untransposed(e, a), _untransposed(e, b)
    if (across or down) and e.rank(a) == e.rank(b) == 2:
        return e.op("matmul", x, y, attrs=MatmulAttrs(transpose_a=across, transpose_b=down))
    return e.matmul(a, b)


def _untransposed(e: Emitter, value: str) -> tuple[str, bool]:
    made = next((n for n in e.b.nodes if n.op == "permute" and value in n.outputs), None)
    return (value, False) if made is None else (made.inputs[0], True)


@operation("transpose")
def _transpose(e: Emitter, x: str, axes: tuple[int, ...]) -> str:
    return e.permute(x, axes)


@operation("reshape")
def _reshape(e: Emitter, x: str, shape: tuple[int, ...]) -> str:
    return e.reshape(x, shape)


@operation("broadcast_to")
def _broadcast(e: Emitter, x: str, shape: tuple[int, ...]) -> str:
    return e.expand(x, shape)


@operation("concatenate")
def _concatenate(e: Emitter, *operands: Any) -> str:
    *arrays, axis = operands
    return e.concat(arrays, axis)


@operation("index")
def _index(e: Emitter, x: str, parts: tuple[int | tuple[int, int, int], ...]) -> str:
    """An integer, or (start, stop, step), for each leading dimension."""
    axis = 0
    for part in parts:
        if isinstance(part, int):
            x = e.select(x, axis, part)
        else:
            x = e.slice(x, axis, *part)
            axis += 1
    return x


# -- reductions ------------------------------------------------------------------------------------------------
@operation("sum")
def _sum(e: Emitter, x: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    return e.reduce("reduce_sum", x, axes, keepdims)


@operation("mean")
def _mean(e: Emitter, x: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    return e.reduce("reduce_mean", x, axes, keepdims)


@operation("max")
def _max(e: Emitter, x: str, axes: tuple[int, ...] | None, keepdims: bool) -> str:
    """As max pools over one dimension: the reduced ones, moved to the end."""
    shape = e.shape(x)
    chosen = {a % len(shape) for a in axes} if axes is not None else set(range(len(shape)))
    kept = [a for a in range(len(shape)) if a not in chosen]
    rows, extent = prod(shape[a] for a in kept), prod(shape[a] for a in chosen)
    x = e.reshape(e.permute(x, [*kept, *sorted(chosen)]), (rows, 1, extent, 1))
    while extent > 1:
        window = min(extent, WINDOW)
        attrs = MaxPoolAttrs(kernel=(window, 1), stride=(window, 1), ceil_mode=True)
        x = e.op("max_pool2d", x, attrs=attrs)
        extent = e.shape(x)[2]
    ends = [1 if a in chosen else d for a, d in enumerate(shape)]
    return e.reshape(x, ends if keepdims else [shape[a] for a in kept])


@operation("argmax")
def _argmax(e: Emitter, x: str, axis: int) -> str:
    """The first place of the maximum, as a float: n - i is largest there among the places that equal the maximum."""
    shape = e.shape(x)
    axis, extent = axis % len(shape), shape[axis]
    places = e.equal(x, _max(e, x, (axis,), True))
    counts = np.arange(extent, 0, -1, dtype=np.float32).reshape([-1] + [1] * (len(shape) - 1 - axis))
    best = _max(e, e.op("mul", places, e.constant(counts)), (axis,), False)
    return e.shift(e.op("neg", best), extent)


@operation("equal")
def _equal(e: Emitter, a: str, b: str) -> str:
    return e.equal(a, b)


# -- layers ----------------------------------------------------------------------------------------------------
@operation("softmax", "log_softmax")
def _softmax(e: Emitter, x: str, op: str, axis: int) -> str:
    return e.along_last(op, x, axis)


@operation("softmax_backward")
def _softmax_backward(e: Emitter, dy: str, y: str, axis: int) -> str:
    rank = e.rank(y)
    axes = [*(a for a in range(rank) if a != axis % rank), axis % rank]
    dx = e.op("softmax_backward", e.permute(dy, axes), e.permute(y, axes))
    return e.permute(dx, [axes.index(a) for a in range(rank)])


@operation("conv2d")
def _conv2d(e: Emitter, *operands: Any) -> str:
    *arrays, attrs = operands
    return e.op("conv2d", *arrays, attrs=attrs)


@operation("conv2d_backward_data")
def _conv2d_data(e: Emitter, dy: str, w: str, attrs: ConvAttrs, shape: tuple[int, ...]) -> str:
    return e.op("conv2d_backward_data", dy, w, attrs=ConvGradAttrs(**attrs.model_dump(), shape=shape))


@operation("conv2d_backward_weights")
def _conv2d_weights(e: Emitter, x: str, dy: str, attrs: ConvAttrs, shape: tuple[int, ...]) -> str:
    return e.op("conv2d_backward_weights", x, dy, attrs=ConvGradAttrs(**attrs.model_dump(), shape=shape))


@operation("max_pool2d", "avg_pool2d")
def _pool(e: Emitter, x: str, attrs: MaxPoolAttrs | AvgPoolAttrs) -> str:
    return e.op("max_pool2d" if isinstance(attrs, MaxPoolAttrs) else "avg_pool2d", x, attrs=attrs)


@operation("max_pool2d_backward")
def _max_pool_backward(e: Emitter, dy: str, x: str, attrs: MaxPoolAttrs) -> str:
    """With the places that the forward pool chose, which runs again only where it is not in the same graph."""
    made = next(
        (n for n in e.b.nodes if n.op == "max_pool2d" and n.inputs[0] in _same(e, x) and n.attrs == attrs), None
    )
    if made is None:
        e.op("max_pool2d", x, attrs=attrs)
        made = e.b.nodes[-1]
    full = MaxPoolGradAttrs(**attrs.model_dump(), shape=e.shape(x))
    return e.op("max_pool2d_backward", dy, made.outputs[1], attrs=full)


def _same(e: Emitter, x: str) -> set[str]:
    """The value in every memory layout that there is of it."""
    return {x, *(n.outputs[0] for n in e.b.nodes if n.op == "convert_layout" and n.inputs == (x,))}


@operation("avg_pool2d_backward")
def _avg_pool_backward(e: Emitter, dy: str, attrs: AvgPoolAttrs, shape: tuple[int, ...]) -> str:
    return e.op("avg_pool2d_backward", dy, attrs=AvgPoolGradAttrs(**attrs.model_dump(), shape=shape))


@operation("lrn", "lrn_backward")
def _lrn(e: Emitter, *operands: Any) -> str:
    *arrays, attrs = operands
    return e.op("lrn" if len(arrays) == 1 else "lrn_backward", *arrays, attrs=attrs)


@operation("cross_entropy")
def _cross_entropy(e: Emitter, scores: str, labels: str) -> str:
    return e.op("cross_entropy", scores, labels, attrs=ClassLossAttrs())


@operation("mean_squared_error")
def _mean_squared_error(e: Emitter, x: str, target: str) -> str:
    return e.op("mse_loss", x, target, attrs=LossAttrs())


def lower(e: Emitter, name: str, operands: tuple[Any, ...]) -> str:
    """Append the operation's nodes. SP1021: not an operation of lazy arrays."""
    found = OPERATIONS.get(name)
    if found is None:
        raise UserError("SP1021", f"lazy arrays have no operation {name!r}", "see docs/narray.md for what there is")
    return found(e, *operands)


__all__ = ["OPERATIONS", "AvgPoolAttrs", "ConvAttrs", "LrnAttrs", "MaxPoolAttrs", "lower"]
