"""Element-wise arithmetic of one tensor: exp, log, sqrt, abs, square, reciprocal, neg, and their gradients."""

from collections.abc import Sequence

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
