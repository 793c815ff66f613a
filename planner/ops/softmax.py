"""Softmax and log-softmax over the last dimension, sliced over rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import (
    EVERY,
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)


def rows_of(type_: TensorType) -> int:
    """Number of rows: all dimensions but the last."""
    return type_.elements // type_.shape[-1]


def log_softmax(x: Array) -> Array:
    shifted = x - x.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result


class _Rows(Op):
    """Every slice computes some rows of the one output from the same rows of the inputs."""

    family = "softmax"
    input_layout = Layout.ROW_MAJOR

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not inputs[0].shape:
            raise misfit(f"{self.name} needs at least one dimension", "reshape the scalar to (1,)")
        if any(t.shape != inputs[0].shape for t in inputs):
            raise misfit(f"{self.name} needs operands of one shape", "make them alike")
        return (inputs[0],)

    def flops(self, signature: Signature) -> int:
        return 5 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): rows_of(signature.inputs[0])}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x = signature.inputs[0]
        lo, hi = (r * x.shape[-1] for r in split(rows_of(x), mode.slices, index))
        return (*(reads(f"in{i}", lo, hi) for i in range(len(signature.inputs))), writes("out0", lo, hi))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return tuple((0, i) for i in range(len(signature.inputs)))

    def types(self) -> tuple[TensorType, ...]:
        return tuple(TensorType(shape=s) for s in ((6, 10), (3, 11, 33), (1, 1000), (2, 3, 4, 5), (3, 5000)))

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(Attrs(), (t,)) for t in self.types())


class _RowsBackward(_Rows):
    """Inputs: dy, y. Output: dx."""

    output_names = ("dx",)
    input_counts = (2,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, x = super().draw(sample, rng)
        return (dy, self.forward(x))

    def forward(self, x: Array) -> Array:
        raise NotImplementedError

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(Attrs(), (t, t)) for t in self.types())


@register
class Softmax(_Rows):
    """y = exp(x - max) / sum exp(x - max)."""

    name = "softmax"
    low_precision = EVERY

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.emit("softmax_backward", [context.grad, context.node.outputs[0]])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.exp(log_softmax(inputs[0])),)


@register
class SoftmaxBackward(_RowsBackward):
    """dx = y (dy - sum dy y)."""

    name = "softmax_backward"
    low_precision = EVERY

    def forward(self, x: Array) -> Array:
        return Softmax().reference(Attrs(), (x,))[0]

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (y * (dy - (dy * y).sum(-1, keepdims=True)),)


@register
class LogSoftmax(_Rows):
    """y = x - max - log sum exp(x - max)."""

    name = "log_softmax"

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.emit("log_softmax_backward", [context.grad, context.node.outputs[0]])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (log_softmax(inputs[0]),)


@register
class LogSoftmaxBackward(_RowsBackward):
    """dx = dy - exp(y) sum dy."""

    name = "log_softmax_backward"

    def forward(self, x: Array) -> Array:
        return log_softmax(x)

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy - np.exp(y) * dy.sum(-1, keepdims=True),)
