"""NumPy-like functions of lazy arrays, and the layers of Minerva's owl package with their backward halves."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.narray.array import NArray, do, is_number, operand
from planner.narray.operations import AvgPoolAttrs, ConvAttrs, LrnAttrs, MaxPoolAttrs

Pair = int | Sequence[int]


# -- element by element ----------------------------------------------------------------------------------------
def exp(x: NArray) -> NArray:
    return do("exp", x)


def log(x: NArray) -> NArray:
    return do("log", x)


def sqrt(x: NArray) -> NArray:
    return do("sqrt", x)


def square(x: NArray) -> NArray:
    return do("square", x)


def absolute(x: NArray) -> NArray:
    return do("abs", x)


def tanh(x: NArray) -> NArray:
    return do("tanh", x)


def sigmoid(x: NArray) -> NArray:
    return do("sigmoid", x)


def relu(x: NArray) -> NArray:
    return do("relu", x)


def maximum(a: NArray, b: Any) -> NArray:
    return do("clip", a, float(b), None) if is_number(b) else do("maximum", a, operand(a, b))


def minimum(a: NArray, b: Any) -> NArray:
    return do("clip", a, None, float(b)) if is_number(b) else do("minimum", a, operand(a, b))


def clip(x: NArray, low: float | None, high: float | None) -> NArray:
    return do("clip", x, low, high)


def multiply(a: NArray, b: Any) -> NArray:
    return a.__mul__(b)


def equal(a: NArray, b: Any) -> NArray:
    """1 where the elements are the same, else 0; finite values."""
    return do("equal", a, operand(a, np.float32(b) if is_number(b) else b))


def count_nonzero(x: NArray) -> NArray:
    return -equal(x, 0).sum() + x.size


def relu_backward(dy: NArray, y: NArray) -> NArray:
    """dy where y, the result (or x, the operand), is positive; else 0."""
    return do("relu_backward", dy, y)


def sigmoid_backward(dy: NArray, y: NArray) -> NArray:
    """dy y (1 - y); y is the result."""
    return do("sigmoid_backward", dy, y)


def tanh_backward(dy: NArray, y: NArray) -> NArray:
    """dy (1 - y^2); y is the result."""
    return do("tanh_backward", dy, y)


# -- shapes ----------------------------------------------------------------------------------------------------
def concatenate(arrays: Iterable[NArray], axis: int = 0) -> NArray:
    joined = list(arrays)
    if not joined:
        raise UserError("SP1002", "concatenate was given no arrays", "give at least one")
    joined[0].require_axes(axis)
    return do("concatenate", *joined, axis)


def transpose(x: NArray, axes: Sequence[int] | None = None) -> NArray:
    return x.transpose(*(axes or ()))


def reshape(x: NArray, shape: Sequence[int]) -> NArray:
    return x.reshape(shape)


def broadcast_to(x: NArray, shape: Sequence[int]) -> NArray:
    return do("broadcast_to", x, tuple(map(int, shape)))


# -- rows ------------------------------------------------------------------------------------------------------
def softmax(x: NArray, axis: int = -1) -> NArray:
    x.require_axes(axis)
    return do("softmax", x, "softmax", axis)


def log_softmax(x: NArray, axis: int = -1) -> NArray:
    x.require_axes(axis)
    return do("log_softmax", x, "log_softmax", axis)


def softmax_backward(dy: NArray, y: NArray, axis: int = -1) -> NArray:
    """y (dy - sum dy y); y is the result."""
    y.require_axes(axis)
    return do("softmax_backward", dy, y, axis)


def cross_entropy(scores: NArray, labels: NArray) -> NArray:
    """Mean over the rows of scores (N, classes), labels int64 (N)."""
    return do("cross_entropy", scores, labels)


def mean_squared_error(x: NArray, target: NArray) -> NArray:
    return do("mean_squared_error", x, operand(x, target))


# -- images, (N, C, H, W) --------------------------------------------------------------------------------------
def conv2d(
    x: NArray,
    w: NArray,
    b: NArray | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> NArray:
    """w (out, in / groups, KH, KW)."""
    return do("conv2d", x, w, *(() if b is None else (b,)), _conv(stride, padding, dilation, groups))


def conv2d_backward_data(
    dy: NArray,
    w: NArray,
    shape: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> NArray:
    """The gradient by x, which has this shape."""
    return do("conv2d_backward_data", dy, w, _conv(stride, padding, dilation, groups), tuple(shape))


def conv2d_backward_weights(
    dy: NArray,
    x: NArray,
    shape: Sequence[int],
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> NArray:
    """The gradient by w, which has this shape. The bias's is `dy.sum((0, 2, 3))`."""
    return do("conv2d_backward_weights", x, dy, _conv(stride, padding, dilation, groups), tuple(shape))


def max_pool2d(x: NArray, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0) -> NArray:
    return do("max_pool2d", x, _max_pool(kernel, stride, padding))


def max_pool2d_backward(
    dy: NArray, x: NArray, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0
) -> NArray:
    """The gradient by x, the operand of the pool."""
    return do("max_pool2d_backward", dy, x, _max_pool(kernel, stride, padding))


def avg_pool2d(x: NArray, kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0) -> NArray:
    return do("avg_pool2d", x, _avg_pool(kernel, stride, padding))


def avg_pool2d_backward(
    dy: NArray, shape: Sequence[int], kernel: Pair, *, stride: Pair | None = None, padding: Pair = 0
) -> NArray:
    """The gradient by x, which has this shape."""
    return do("avg_pool2d_backward", dy, _avg_pool(kernel, stride, padding), tuple(shape))


def local_response_norm(x: NArray, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> NArray:
    return do("lrn", x, LrnAttrs(size=size, alpha=alpha, beta=beta, k=k))


def local_response_norm_backward(
    dy: NArray, x: NArray, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> NArray:
    return do("lrn_backward", dy, x, LrnAttrs(size=size, alpha=alpha, beta=beta, k=k))


def _pair(value: Pair) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _sides(padding: Pair) -> tuple[int, int, int, int]:
    high, wide = _pair(padding)
    return (high, high, wide, wide)


def _conv(stride: Pair, padding: Pair, dilation: Pair, groups: int) -> ConvAttrs:
    return ConvAttrs(stride=_pair(stride), padding=_sides(padding), dilation=_pair(dilation), groups=groups)


def _max_pool(kernel: Pair, stride: Pair | None, padding: Pair) -> MaxPoolAttrs:
    window = _pair(kernel)
    return MaxPoolAttrs(kernel=window, stride=window if stride is None else _pair(stride), padding=_sides(padding))


def _avg_pool(kernel: Pair, stride: Pair | None, padding: Pair) -> AvgPoolAttrs:
    window = _pair(kernel)
    return AvgPoolAttrs(kernel=window, stride=window if stride is None else _pair(stride), padding=_sides(padding))
