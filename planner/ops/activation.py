"""Element-wise functions of one tensor and their gradients, each from the cheapest value it needs: relu, leaky_relu,
clamp, sigmoid, tanh, exp, sqrt and reciprocal their output, the others their input."""

from collections.abc import Sequence
from math import erf
from typing import Any, ClassVar, Literal

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, Signature, misfit, register
from planner.ops.elementwise import Elementwise

_TYPES = (
    TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST),
    TensorType(shape=(33,)),
    TensorType(shape=(6, 10)),
)


_GELU = np.sqrt(2 / np.pi)


def _normal_cdf(x: Array) -> Array:
    result: Array = 0.5 + 0.5 * np.vectorize(erf, otypes=[x.dtype])(x / np.sqrt(2))
    return result


class LeakyReluAttrs(Attrs):
    slope: float = 0.01


class ClampAttrs(Attrs):
    """None: no bound on that side."""

    low: float | None = None
    high: float | None = None


class GeluAttrs(Attrs):
    approximate: Literal["none", "tanh"] = "none"


class Unary(Elementwise):
    """y = f(x); `needs` says which value the backward op reads beside dy."""

    low_precision = EVERY
    needs: ClassVar[Literal["x", "y"]]
    cost: ClassVar[int] = 1
    positive: ClassVar[bool] = False
    """Whether f is only defined for positive x."""

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def gradient(self, context: GradientContext) -> None:
        value = context.node.inputs[0] if self.needs == "x" else context.node.outputs[0]
        context.give(0, context.emit(f"{self.name}_backward", [context.grad, value], context.attrs)[0])

    def flops(self, signature: Signature) -> int:
        return self.cost * signature.outputs[0].elements

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        x = rng.standard_normal(sample.inputs[0].shape)
        return (np.abs(x) + 0.1 if self.positive else x,)

    def cases(self) -> tuple[Attrs, ...]:
        return (Attrs(),)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(attrs, (t,)) for attrs in self.cases() for t in _TYPES)


class UnaryBackward(Elementwise):
    """dx = dy f'(x). Inputs: dy, and x or y of the forward op. Output: dx."""

    output_names = ("dx",)
    input_counts = (2,)
    low_precision = EVERY
    forward: ClassVar[type[Unary]]

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].shape != inputs[1].shape:
            raise misfit(f"gradient {inputs[0].text()} differs from {inputs[1].text()}", "make both alike")
        return (inputs[0],)

    def flops(self, signature: Signature) -> int:
        return (self.forward.cost + 2) * signature.outputs[0].elements

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        forward = self.forward()
        (x,) = forward.draw(sample, rng)
        value = x if forward.needs == "x" else forward.reference(sample.attrs, (x,))[0]
        return (rng.standard_normal(sample.inputs[0].shape), value)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, s.inputs * 2) for s in self.forward().samples())


class _GateBackward(UnaryBackward):
    """dx = dy where the gate is open, else 0, whatever dy is there: that of a square root at 0 is infinite."""

    def is_open(self, attrs: Any, value: Array) -> Array:
        raise NotImplementedError

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, value = inputs
        return (np.where(self.is_open(attrs, value), dy, 0.0),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, value = super().draw(sample, rng)
        return (np.where(self.is_open(sample.attrs, value), dy, np.inf), value)


@register
class Relu(Unary):
    """y = max(x, 0)."""

    name = "relu"
    needs = "y"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.maximum(inputs[0], 0),)


@register
class ReluBackward(_GateBackward):
    """dx = dy where the forward output y > 0. Inputs: dy, y."""

    name = "relu_backward"
    forward = Relu

    def is_open(self, attrs: Attrs, value: Array) -> Array:
        return np.asarray(value > 0)


@register
class LeakyRelu(Unary):
    """y = x where x > 0, else slope x; a positive slope, so that y has the sign of x."""

    name = "leaky_relu"
    attrs_type = LeakyReluAttrs
    needs = "y"
    cost = 2

    def infer(self, attrs: LeakyReluAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if attrs.slope < 0:
            raise misfit(f"leaky_relu has the negative slope {attrs.slope}", "use a slope of at least 0")
        return (inputs[0],)

    def cases(self) -> tuple[Attrs, ...]:
        return (LeakyReluAttrs(), LeakyReluAttrs(slope=0.2))

    def reference(self, attrs: LeakyReluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.where(inputs[0] > 0, inputs[0], attrs.slope * inputs[0]),)


@register
class LeakyReluBackward(UnaryBackward):
    """dx = dy where y > 0, else slope dy. Inputs: dy, y."""

    name = "leaky_relu_backward"
    attrs_type = LeakyReluAttrs
    forward = LeakyRelu

    def reference(self, attrs: LeakyReluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (np.where(y > 0, dy, attrs.slope * dy),)


class _Bounded(Unary):
    """y = x between the bounds, else the nearer bound."""

    attrs_type = ClampAttrs
    cost = 2

    def infer(self, attrs: ClampAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if attrs.low is not None and attrs.high is not None and not attrs.low < attrs.high:
            raise misfit(
                f"{self.name} has the bounds {attrs.low} and {attrs.high}", "the first must be below the second"
            )
        return (inputs[0],)

    def cases(self) -> tuple[Attrs, ...]:
        return (ClampAttrs(low=0.0, high=6.0), ClampAttrs(low=-0.3), ClampAttrs(low=-1.0, high=0.5))

    def reference(self, attrs: ClampAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        low, high = clamp_bounds(attrs, inputs[0])
        return (np.minimum(np.maximum(inputs[0], low), high),)


@register
class Clamp(_Bounded):
    """A bounded function whose gradient at the bounds is 0: relu6, hardtanh."""

    name = "clamp"
    needs = "y"


@register
class ClampBackward(_GateBackward):
    """dx = dy strictly between the bounds, as hardtanh has it. Inputs: dy, y."""

    name = "clamp_backward"
    attrs_type = ClampAttrs
    forward = Clamp

    def is_open(self, attrs: ClampAttrs, value: Array) -> Array:
        low, high = clamp_bounds(attrs, value)
        return np.asarray((value > low) & (value < high))


@register
class Clip(_Bounded):
    """A bounded function whose gradient passes at the bounds, too, for which x is needed: PyTorch's clamp."""

    name = "clip"
    needs = "x"


@register
class ClipBackward(_GateBackward):
    """dx = dy between the bounds and at them. Inputs: dy, x."""

    name = "clip_backward"
    attrs_type = ClampAttrs
    forward = Clip

    def is_open(self, attrs: ClampAttrs, value: Array) -> Array:
        low, high = clamp_bounds(attrs, value)
        return np.asarray((value >= low) & (value <= high))


def clamp_bounds(attrs: ClampAttrs, like: Array) -> tuple[Any, Any]:
    """The bounds in an array's type, in which they are compared."""
    low = -np.inf if attrs.low is None else attrs.low
    return like.dtype.type(low), like.dtype.type(np.inf if attrs.high is None else attrs.high)


@register
class Sigmoid(Unary):
    """y = 1 / (1 + exp(-x))."""

    name = "sigmoid"
    needs = "y"
    cost = 10

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        y: Array = 1 / (1 + np.exp(-inputs[0]))
        return (y,)


@register
class SigmoidBackward(UnaryBackward):
    """dx = dy y (1 - y). Inputs: dy, y."""

    name = "sigmoid_backward"
    forward = Sigmoid

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy * y * (1 - y),)


@register
class Tanh(Unary):
    """y = tanh(x)."""

    name = "tanh"
    needs = "y"
    cost = 10

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.tanh(inputs[0]),)


@register
class TanhBackward(UnaryBackward):
    """dx = dy (1 - y^2). Inputs: dy, y."""

    name = "tanh_backward"
    forward = Tanh

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy * (1 - y * y),)


@register
class Silu(Unary):
    """y = x sigmoid(x)."""

    name = "silu"
    needs = "x"
    cost = 11

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] / (1 + np.exp(-inputs[0])),)


@register
class SiluBackward(UnaryBackward):
    """dx = dy s (1 + x (1 - s)) with s = sigmoid(x). Inputs: dy, x."""

    name = "silu_backward"
    forward = Silu

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        sigmoid = 1 / (1 + np.exp(-x))
        return (dy * sigmoid * (1 + x * (1 - sigmoid)),)


@register
class Gelu(Unary):
    """y = x P(normal < x), or its approximation x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    name = "gelu"
    attrs_type = GeluAttrs
    needs = "x"
    cost = 15

    def cases(self) -> tuple[Attrs, ...]:
        return (GeluAttrs(), GeluAttrs(approximate="tanh"))

    def reference(self, attrs: GeluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if attrs.approximate == "tanh":
            return (0.5 * x * (1 + np.tanh(_GELU * (x + 0.044715 * x**3))),)
        return (x * _normal_cdf(x),)


@register
class GeluBackward(UnaryBackward):
    """dx = dy (P(normal < x) + x density(x)), or the approximation's derivative. Inputs: dy, x."""

    name = "gelu_backward"
    attrs_type = GeluAttrs
    forward = Gelu

    def reference(self, attrs: GeluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        if attrs.approximate == "tanh":
            t = np.tanh(_GELU * (x + 0.044715 * x**3))
            slope = _GELU * (1 + 3 * 0.044715 * x * x)
            return (dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope),)
        return (dy * (_normal_cdf(x) + x * np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)),)
