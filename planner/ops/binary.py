"""Element-wise functions of two operands, broadcast by NumPy's rules, and their gradients."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, Signature, common_layout, misfit, register
from planner.ops.broadcast import Broadcast
from planner.ops.elementwise import Elementwise
from planner.ops.reduce import sum_to


class BinaryGradAttrs(Attrs):
    """`operand`: whose gradient, 0 or 1."""

    operand: int


class _Binary(Broadcast):
    """Inputs: a, b. Output: y with the broadcast shape."""

    low_precision = EVERY
    family = "binary"
    input_counts = (2,)
    function: ClassVar[Callable[..., Any]]

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = inputs
        if a.shape == b.shape:
            return (a,)
        return (self.broadcast(inputs, a.dtype),)

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (type(self).function(*inputs),)

    def samples(self) -> Sequence[Sample]:
        cl = Layout.CHANNELS_LAST
        image = TensorType(shape=(3, 8, 5, 7), layout=cl)
        cases = (
            (TensorType(shape=(33,)), TensorType(shape=(33,))),
            (image, image),
            (image, TensorType(shape=(1, 8, 1, 1), layout=cl)),
            (TensorType(shape=(3, 8, 1, 1), layout=cl), image),
            (image, TensorType(shape=(8, 1, 1))),
            (TensorType(shape=(4, 1, 6)), TensorType(shape=(5, 1))),
            (TensorType(shape=(6, 10)), TensorType(shape=())),
        )
        return tuple(Sample(Attrs(), case) for case in cases)


@register
class Add(_Binary):
    """y = a + b."""

    name = "add"
    function = np.add

    def gradient(self, context: GradientContext) -> None:
        for index in (0, 1):
            if context.needs(index):
                _give(context, index, context.grad)


@register
class Sub(_Binary):
    """y = a - b."""

    name = "sub"
    function = np.subtract

    def gradient(self, context: GradientContext) -> None:
        if context.needs(0):
            _give(context, 0, context.grad)
        if context.needs(1):
            total = sum_to(context, context.grad, context.type(context.node.inputs[1]).shape, 1)
            context.give(1, context.emit("neg", [total], of=1)[0])


@register
class Mul(_Binary):
    """y = a b."""

    name = "mul"
    function = np.multiply

    def gradient(self, context: GradientContext) -> None:
        for index in (0, 1):
            if context.needs(index):
                other = context.node.inputs[1 - index]
                _give(context, index, context.emit("mul", [context.grad, other], of=index)[0])


@register
class Div(_Binary):
    """y = a / b."""

    name = "div"
    function = np.divide

    def gradient(self, context: GradientContext) -> None:
        if context.needs(0):
            _give(context, 0, context.emit("div", [context.grad, context.node.inputs[1]], of=0)[0])
        if context.needs(1):
            _give_computed(context, 1)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        a, b = super().draw(sample, rng)
        return (a, _away_from_zero(b))


class _Computed(_Binary):
    """Both gradients have an op of their own."""

    def gradient(self, context: GradientContext) -> None:
        for index in (0, 1):
            if context.needs(index):
                _give_computed(context, index)


@register
class Maximum(_Computed):
    """y = max(a, b)."""

    name = "maximum"
    function = np.maximum


@register
class Minimum(_Computed):
    """y = min(a, b)."""

    name = "minimum"
    function = np.minimum


class _Rest(_Binary):
    """What division leaves, exactly: a less a whole multiple of b. NaN where b is 0 or a infinite."""

    def gradient(self, context: GradientContext) -> None:
        if context.needs(0):
            _give(context, 0, context.grad)
        if context.needs(1):
            _give_computed(context, 1)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        a, b = super().draw(sample, rng)
        return (9 * a, _away_from_zero(b))


@register
class Remainder(_Rest):
    """y = a - b floor(a / b): it has b's sign, and is b itself where a tiny one of the other sign is rounded."""

    name = "remainder"
    function = np.remainder


@register
class Fmod(_Rest):
    """y = a - b trunc(a / b): it has a's sign."""

    name = "fmod"
    function = np.fmod


@register
class Pow(_Computed):
    """y = a ** b. NaN where a is negative and b no whole number."""

    name = "pow"
    function = np.power

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        a, b = super().draw(sample, rng)
        return (np.abs(a) + 0.25, b)


class _BinaryBackward(Elementwise):
    """Inputs: dy, a, b, all of one shape. Output: the gradient of operand `attrs.operand`."""

    low_precision = EVERY
    family = "binary"
    input_counts = (3,)
    attrs_type = BinaryGradAttrs
    output_names = ("dx",)

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: BinaryGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not all(t.shape == inputs[0].shape for t in inputs):
            raise misfit(f"{self.name} needs operands of one shape", "expand them first")
        if attrs.operand not in (0, 1):
            raise misfit(f"{self.name} has operands 0 and 1, not {attrs.operand}", "choose one of them")
        return (inputs[0],)

    def flops(self, signature: Signature) -> int:
        return 3 * signature.outputs[0].elements

    def samples(self) -> Sequence[Sample]:
        shapes = ((33,), (3, 8, 5, 7))
        types = [TensorType(shape=s, layout=Layout.CHANNELS_LAST if len(s) == 4 else Layout.ROW_MAJOR) for s in shapes]
        return tuple(Sample(BinaryGradAttrs(operand=o), (t, t, t)) for t in types for o in (0, 1))


@register
class DivBackward(_BinaryBackward):
    """da = dy / b; db = -dy a / b^2."""

    name = "div_backward"

    def reference(self, attrs: BinaryGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, a, b = inputs
        return (-dy * a / (b * b) if attrs.operand else dy / b,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, a, b = super().draw(sample, rng)
        return (dy, a, _away_from_zero(b))


class _ExtremumBackward(_BinaryBackward):
    """dy goes to the operand that was chosen, half to each where they are equal."""

    sign: ClassVar[int]

    def reference(self, attrs: BinaryGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, *operands = inputs
        own, other = operands[attrs.operand], operands[1 - attrs.operand]
        chosen = (own - other) * self.sign > 0
        return (np.where(own == other, 0.5 * dy, np.where(chosen, dy, 0.0)),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """To the other operand no dy goes, be it infinite."""
        dy, *operands = super().draw(sample, rng)
        assert isinstance(sample.attrs, BinaryGradAttrs)
        own, other = operands[sample.attrs.operand], operands[1 - sample.attrs.operand]
        return (np.where((own - other) * self.sign < 0, np.inf, dy), *operands)


@register
class MaximumBackward(_ExtremumBackward):
    name = "maximum_backward"
    sign = 1


@register
class MinimumBackward(_ExtremumBackward):
    name = "minimum_backward"
    sign = -1


class _RestBackward(_BinaryBackward):
    """da = dy; db = -dy times the quotient, rounded as the op rounds it."""

    rounded: ClassVar[Callable[..., Any]]

    def reference(self, attrs: BinaryGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, a, b = inputs
        return (-dy * type(self).rounded(a / b) if attrs.operand else dy,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, a, b = super().draw(sample, rng)
        return (dy, 9 * a, _away_from_zero(b))


@register
class RemainderBackward(_RestBackward):
    name = "remainder_backward"
    rounded = np.floor


@register
class FmodBackward(_RestBackward):
    name = "fmod_backward"
    rounded = np.trunc


@register
class PowBackward(_BinaryBackward):
    """da = dy b a ** (b - 1), 0 where b is; db = dy y log(a), 0 where a is 0 and b not negative."""

    name = "pow_backward"

    def reference(self, attrs: BinaryGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, a, b = inputs
        with np.errstate(divide="ignore", invalid="ignore"):
            if attrs.operand:
                return (np.where((a == 0) & (b >= 0), 0.0, dy * np.power(a, b) * np.log(a)),)
            return (np.where(b == 0, 0.0, dy * b * np.power(a, b - 1)),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, a, b = super().draw(sample, rng)
        return (dy, np.where(b > 1, 0.0, np.abs(a) + 0.25), b)


def _away_from_zero(b: Array) -> Array:
    return np.asarray(np.sign(b) * (np.abs(b) + 0.5))


def _give_computed(context: GradientContext, index: int) -> None:
    """The gradient that an op of its own computes from that of the result and both operands."""
    operands = [context.grad, *(_expanded(context, x) for x in context.node.inputs)]
    attrs = BinaryGradAttrs(operand=index)
    _give(context, index, context.emit(f"{context.node.op}_backward", operands, attrs, of=index)[0])


def _give(context: GradientContext, index: int, gradient: str) -> None:
    """Deliver a gradient of the broadcast shape."""
    context.give(index, sum_to(context, gradient, context.type(context.node.inputs[index]).shape, index))


def _expanded(context: GradientContext, value: str) -> str:
    """An operand repeated to the result's shape."""
    from planner.ops.copy import ExpandAttrs

    target = context.type(context.node.outputs[0])
    if context.type(value).shape == target.shape:
        return value
    return context.emit("expand", [value], ExpandAttrs(shape=target.shape, layout=target.layout), "expand")[0]
