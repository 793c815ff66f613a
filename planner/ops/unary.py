"""Element-wise arithmetic of one tensor: exp, expm1, log, log1p, sqrt, abs, square, reciprocal, neg, erf, sin, cos,
atan, and their gradients."""

from collections.abc import Sequence
from math import erf

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs
from planner.ops.activation import Unary, UnaryBackward
from planner.ops.base import Array, register


@register
class Exp(Unary):
    """y = exp(x)."""

    name = "exp"
    needs = "y"
    cost = 8

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.exp(inputs[0]),)


@register
class ExpBackward(UnaryBackward):
    """dx = dy y. Inputs: dy, y."""

    name = "exp_backward"
    forward = Exp

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy * y,)


@register
class Log(Unary):
    """y = log(x)."""

    name = "log"
    needs = "x"
    cost = 8
    positive = True

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.log(inputs[0]),)


@register
class LogBackward(UnaryBackward):
    """dx = dy / x. Inputs: dy, x."""

    name = "log_backward"
    forward = Log

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy / x,)


@register
class Log1p(Unary):
    """y = log(1 + x), exact where x is tiny."""

    name = "log1p"
    needs = "x"
    cost = 12
    positive = True

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.log1p(inputs[0]),)


@register
class Log1pBackward(UnaryBackward):
    """dx = dy / (1 + x). Inputs: dy, x."""

    name = "log1p_backward"
    forward = Log1p

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy / (1 + x),)


@register
class Expm1(Unary):
    """y = exp(x) - 1, exact where x is tiny."""

    name = "expm1"
    needs = "y"
    cost = 10

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.expm1(inputs[0]),)


@register
class Expm1Backward(UnaryBackward):
    """dx = dy (y + 1). Inputs: dy, y."""

    name = "expm1_backward"
    forward = Expm1

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy * (y + 1),)


@register
class Sqrt(Unary):
    """y = sqrt(x)."""

    name = "sqrt"
    needs = "y"
    positive = True

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.sqrt(inputs[0]),)


@register
class SqrtBackward(UnaryBackward):
    """dx = dy / (2 y). Inputs: dy, y."""

    name = "sqrt_backward"
    forward = Sqrt

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (dy / (2 * y),)


@register
class Abs(Unary):
    """y = |x|."""

    name = "abs"
    needs = "x"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.abs(inputs[0]),)


@register
class AbsBackward(UnaryBackward):
    """dx = dy sign(x), 0 at 0. Inputs: dy, x."""

    name = "abs_backward"
    forward = Abs

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * np.sign(x),)


@register
class Square(Unary):
    """y = x^2."""

    name = "square"
    needs = "x"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] * inputs[0],)


@register
class SquareBackward(UnaryBackward):
    """dx = 2 x dy. Inputs: dy, x."""

    name = "square_backward"
    forward = Square

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (2 * x * dy,)


@register
class Reciprocal(Unary):
    """y = 1 / x."""

    name = "reciprocal"
    needs = "y"
    positive = True

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (1 / inputs[0],)


@register
class ReciprocalBackward(UnaryBackward):
    """dx = -dy y^2. Inputs: dy, y."""

    name = "reciprocal_backward"
    forward = Reciprocal

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        return (-dy * y * y,)


@register
class Neg(Unary):
    """y = -x."""

    name = "neg"

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.emit("neg", [context.grad])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (-inputs[0],)


@register
class Erf(Unary):
    """y = 2 / sqrt(pi) times the integral of exp(-t^2) from 0 to x."""

    name = "erf"
    needs = "x"
    cost = 14

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.vectorize(erf, otypes=[inputs[0].dtype])(inputs[0]),)


@register
class ErfBackward(UnaryBackward):
    """dx = dy 2 / sqrt(pi) exp(-x^2). Inputs: dy, x."""

    name = "erf_backward"
    forward = Erf

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * 2 / np.sqrt(np.pi) * np.exp(-x * x),)


@register
class Sin(Unary):
    """y = sin(x)."""

    name = "sin"
    needs = "x"
    cost = 16

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.sin(inputs[0]),)


@register
class SinBackward(UnaryBackward):
    """dx = dy cos(x). Inputs: dy, x."""

    name = "sin_backward"
    forward = Sin

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * np.cos(x),)


@register
class Cos(Unary):
    """y = cos(x)."""

    name = "cos"
    needs = "x"
    cost = 16

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.cos(inputs[0]),)


@register
class CosBackward(UnaryBackward):
    """dx = -dy sin(x). Inputs: dy, x."""

    name = "cos_backward"
    forward = Cos

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (-dy * np.sin(x),)


@register
class Atan(Unary):
    """y = arctan(x)."""

    name = "atan"
    needs = "x"
    cost = 14

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.arctan(inputs[0]),)


@register
class AtanBackward(UnaryBackward):
    """dx = dy / (1 + x^2). Inputs: dy, x."""

    name = "atan_backward"
    forward = Atan

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy / (1 + x * x),)
