"""Rectifiers with an exponential curve: softplus (Dugas et al. 2000) and elu (Clevert et al. 2016), and their
gradients."""

from collections.abc import Sequence
from math import inf

import numpy as np

from planner.graph.model import Attrs, TensorType
from planner.ops.activation import Unary, UnaryBackward
from planner.ops.base import Array, misfit, register


class SoftplusAttrs(Attrs):
    beta: float = 1.0
    threshold: float | None = None
    """Where beta x is above it, y = x. None: nowhere."""

    @property
    def bound(self) -> float:
        return inf if self.threshold is None else self.threshold


class EluAttrs(Attrs):
    """selu: both scales are numbers of its own; celu: alpha, 1, 1 / alpha."""

    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0


@register
class Softplus(Unary):
    """y = log(1 + exp(beta x)) / beta, computed as (max(beta x, 0) + log1p(exp(-|beta x|))) / beta: it never
    overflows."""

    name = "softplus"
    attrs_type = SoftplusAttrs
    needs = "x"
    cost = 20

    def infer(self, attrs: SoftplusAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not attrs.beta > 0:
            raise misfit(f"softplus has the beta {attrs.beta}", "use one above 0")
        return (inputs[0],)

    def cases(self) -> tuple[Attrs, ...]:
        return (SoftplusAttrs(), SoftplusAttrs(beta=2.0, threshold=1.0))

    def reference(self, attrs: SoftplusAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        scaled = attrs.beta * x
        curve = (np.maximum(scaled, 0) + np.log1p(np.exp(-np.abs(scaled)))) / attrs.beta
        return (np.where(scaled > attrs.bound, x, curve),)


@register
class SoftplusBackward(UnaryBackward):
    """dx = dy sigmoid(beta x), and dy above the threshold. Inputs: dy, x."""

    name = "softplus_backward"
    attrs_type = SoftplusAttrs
    forward = Softplus

    def reference(self, attrs: SoftplusAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        scaled = attrs.beta * x
        small = np.exp(-np.abs(scaled))
        slope = np.where(scaled < 0, small, 1) / (1 + small)
        return (np.where(scaled > attrs.bound, dy, dy * slope),)


@register
class Elu(Unary):
    """y = scale x where x > 0, else scale alpha (exp(input_scale x) - 1)."""

    name = "elu"
    attrs_type = EluAttrs
    needs = "x"
    cost = 12

    def infer(self, attrs: EluAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not attrs.input_scale > 0:
            raise misfit(f"elu has the input scale {attrs.input_scale}", "use one above 0")
        return (inputs[0],)

    def cases(self) -> tuple[Attrs, ...]:
        return (EluAttrs(), EluAttrs(alpha=1.5, scale=1.1, input_scale=0.7))

    def reference(self, attrs: EluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        curve = attrs.alpha * np.expm1(attrs.input_scale * np.minimum(x, 0))
        return (attrs.scale * np.where(x > 0, x, curve),)


@register
class EluBackward(UnaryBackward):
    """dx = scale dy where x > 0, else scale alpha input_scale exp(input_scale x) dy. Inputs: dy, x."""

    name = "elu_backward"
    attrs_type = EluAttrs
    forward = Elu

    def reference(self, attrs: EluAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        slope = attrs.alpha * attrs.input_scale * np.exp(attrs.input_scale * np.minimum(x, 0))
        return (attrs.scale * np.where(x > 0, dy, slope * dy),)
