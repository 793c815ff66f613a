"""Activations and their gradients, each from the value it needs (relu, sigmoid, tanh their output)."""

from collections.abc import Sequence

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Array, Sample, register
from planner.ops.elementwise import Elementwise

_SHAPES = ((3, 8, 5, 7), (33,), (6, 10))


def _unary_samples(count: int) -> tuple[Sample, ...]:
    return tuple(
        Sample(
            Attrs(), (TensorType(shape=s, layout=Layout.CHANNELS_LAST if len(s) == 4 else Layout.ROW_MAJOR),) * count
        )
        for s in _SHAPES
    )


class _Unary(Elementwise):
    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        return _unary_samples(1)


class _UnaryBackward(Elementwise):
    """Inputs: dy, and the forward input or output. Output: dx."""

    output_names = ("dx",)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        return _unary_samples(2)


@register
class Relu(_Unary):
    """y = max(x, 0)."""

    name = "relu"

    def gradient(self, context: GradientContext) -> None:
        (dx,) = context.emit("relu_backward", [context.grad, context.node.outputs[0]])
        context.give(0, dx)

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.maximum(inputs[0], 0),)


@register
class ReluBackward(_UnaryBackward):
    """dx = dy where the forward output y > 0. Inputs: dy, y."""

    name = "relu_backward"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] * (inputs[1] > 0),)
