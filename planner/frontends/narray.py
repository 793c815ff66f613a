"""NumPy-like lazy arrays (Minerva's NArray): expressions record a graph instead of computing.

    with Recorder("mlp_b32") as r:
        x, y = r.input("x", (32, 64)), r.labels("y", (32,))
        w1, w2 = r.parameter("w1", (64, 100)), r.parameter("w2", (100, 10))
        scores = relu(x @ w1) @ w2
        graph = r.train(cross_entropy(scores, y), scores, Optimizer(lr=0.1))

Every array belongs to a recorder; arrays of two recorders do not mix. Nothing has a value before the graph runs:
`float(a)`, `bool(a)` and iteration are errors, so that no branch depends on data by accident.
"""

from collections.abc import Iterable
from math import prod, sqrt
from typing import Any, NoReturn

import numpy as np

from planner.errors import UserError
from planner.frontends.emitter import Emitter, identifier
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init
from planner.graph.optimizer import Optimizer
from planner.ops.loss import ClassLossAttrs, LossAttrs

Axes = int | Iterable[int] | None


class Recorder:
    """Collects one network. As a context manager it only marks where the network is written."""

    def __init__(self, name: str) -> None:
        self.emitter = Emitter(GraphBuilder(identifier(name)))

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def input(self, name: str, shape: Iterable[int]) -> "NArray":
        """A float32 batch; rank 4 is an image batch (N, C, H, W)."""
        return NArray(self, self.emitter.input(name, tuple(shape)))

    def labels(self, name: str, shape: Iterable[int]) -> "NArray":
        """A batch of int64 class numbers."""
        return NArray(self, self.emitter.input(name, tuple(shape), DType.INT64))

    def parameter(self, name: str, shape: Iterable[int], init: Init | None = None) -> "NArray":
        """A trained array; matrices start uniform within 1 / sqrt(rows), vectors at zero."""
        shape = tuple(shape)
        bound = 1 / sqrt(shape[0]) if len(shape) > 1 else 0.0
        start = init or (Init(kind="uniform", value=bound) if bound else Init(kind="zeros"))
        return NArray(self, self.emitter.b.parameter(name, shape, start))

    def train(self, loss: "NArray", prediction: "NArray", optimizer: Optimizer | None = None) -> Graph:
        """The finished training graph; the recorder can't be used afterwards."""
        self.check(loss, prediction)
        return self.emitter.b.finish(loss.value, prediction.value, optimizer or Optimizer(lr=0.1))

    def check(self, *arrays: "NArray") -> None:
        if any(a.recorder is not self for a in arrays):
            raise UserError("SP1021", "arrays of two recorders meet", "write one network with one recorder")


class NArray:
    """A lazy array. Operators broadcast by NumPy's rules."""

    __array_priority__ = 1000
    __array_ufunc__ = None
    """Makes NumPy leave `ndarray + NArray` to this class."""

    def __init__(self, recorder: Recorder, value: str) -> None:
        self.recorder, self.value = recorder, value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.recorder.emitter.shape(self.value)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def __repr__(self) -> str:
        return f"NArray({self.value}: {self.recorder.emitter.b.type(self.value).text()})"

    # -- recording ---------------------------------------------------------------------------------------------
    def _e(self, name: str) -> Emitter:
        self.recorder.emitter.name = name
        return self.recorder.emitter

    def _new(self, value: str) -> "NArray":
        return NArray(self.recorder, value)

    def _other(self, other: Any) -> str:
        if isinstance(other, NArray):
            self.recorder.check(other)
            return other.value
        return self._e("constant").constant(np.asarray(other, np.float32))

    def _binary(self, op: str, other: Any, swapped: bool = False) -> "NArray":
        left, right = (self._other(other), self.value) if swapped else (self.value, self._other(other))
        return self._new(self._e(op).op(op, left, right))

    def apply(self, op: str) -> "NArray":
        """Any op of one array without attributes, by its name: relu, tanh, exp, ..."""
        return self._new(self._e(op).op(op, self.value))

    def __add__(self, other: Any) -> "NArray":
        return self._new(self._e("add").shift(self.value, other)) if _number(other) else self._binary("add", other)

    def __sub__(self, other: Any) -> "NArray":
        return self._new(self._e("sub").shift(self.value, -other)) if _number(other) else self._binary("sub", other)

    def __mul__(self, other: Any) -> "NArray":
        return self._new(self._e("mul").scale(self.value, other)) if _number(other) else self._binary("mul", other)

    def __truediv__(self, other: Any) -> "NArray":
        return self._new(self._e("div").scale(self.value, 1 / other)) if _number(other) else self._binary("div", other)

    def __pow__(self, exponent: float) -> "NArray":
        return self._new(self._e("power").power(self.value, exponent))

    def __matmul__(self, other: "NArray") -> "NArray":
        right = self._other(other)
        return self._new(self._e("matmul").matmul(self.value, right))

    def __rmatmul__(self, other: Any) -> "NArray":
        left = self._other(other)
        return self._new(self._e("matmul").matmul(left, self.value))

    def __rsub__(self, other: Any) -> "NArray":
        return -self + other if _number(other) else self._binary("sub", other, swapped=True)

    def __rtruediv__(self, other: Any) -> "NArray":
        return self.apply("reciprocal") * other if _number(other) else self._binary("div", other, swapped=True)

    def __neg__(self) -> "NArray":
        return self.apply("neg")

    def __abs__(self) -> "NArray":
        return self.apply("abs")

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> "NArray":
        """Integers and slices, one per leading dimension."""
        e, value, axis = self._e("index"), self.value, 0
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, slice):
                value = e.slice(value, axis, *part.indices(e.shape(value)[axis]))
                axis += 1
            elif isinstance(part, int):
                value = e.select(value, axis, part)
            else:
                raise UserError("SP1021", f"an NArray cannot be indexed with {part!r}", "use integers and slices")
        return self._new(value)

    # -- shapes and reductions ---------------------------------------------------------------------------------
    @property
    def T(self) -> "NArray":
        return self.transpose()

    def transpose(self, *axes: int) -> "NArray":
        return self._new(self._e("transpose").permute(self.value, axes or range(self.ndim)[::-1]))

    def reshape(self, *shape: int) -> "NArray":
        return self._new(self._e("reshape").reshape(self.value, shape))

    def sum(self, axis: Axes = None, keepdims: bool = False) -> "NArray":
        return self._new(self._e("sum").reduce("reduce_sum", self.value, _axes(axis), keepdims))

    def mean(self, axis: Axes = None, keepdims: bool = False) -> "NArray":
        return self._new(self._e("mean").reduce("reduce_mean", self.value, _axes(axis), keepdims))

    # -- what a lazy array cannot do ---------------------------------------------------------------------------
    def _lazy(self, *_: Any) -> NoReturn:
        raise UserError("SP1021", f"{self!r} has no value yet", "build the graph first, then run its executor")

    __float__ = __int__ = __bool__ = __len__ = __iter__ = __array__ = _lazy


def _number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number)


def _axes(axis: Axes) -> list[int] | None:
    return None if axis is None else [axis] if isinstance(axis, int) else list(axis)


def relu(x: NArray) -> NArray:
    return x.apply("relu")


def tanh(x: NArray) -> NArray:
    return x.apply("tanh")


def sigmoid(x: NArray) -> NArray:
    return x.apply("sigmoid")


def exp(x: NArray) -> NArray:
    return x.apply("exp")


def log(x: NArray) -> NArray:
    return x.apply("log")


def softmax(x: NArray, axis: int = -1) -> NArray:
    return x._new(x._e("softmax").along_last("softmax", x.value, axis))


def concatenate(arrays: Iterable[NArray], axis: int = 0) -> NArray:
    first, *rest = arrays
    first.recorder.check(*rest)
    return first._new(first._e("concatenate").concat([first.value, *(a.value for a in rest)], axis))


def cross_entropy(scores: NArray, labels: NArray) -> NArray:
    """Mean over the rows of scores (N, classes), labels int64 (N)."""
    scores.recorder.check(labels)
    return scores._new(scores._e("loss").op("cross_entropy", scores.value, labels.value, attrs=ClassLossAttrs()))


def mean_squared_error(x: NArray, target: NArray) -> NArray:
    x.recorder.check(target)
    return x._new(x._e("loss").op("mse_loss", x.value, target.value, attrs=LossAttrs()))
