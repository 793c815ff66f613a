"""Element-wise functions of one tensor and one constant: y = x * v, y = x + v, y = x ** v."""

from collections.abc import Sequence

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, Signature, misfit, register
from planner.ops.elementwise import Elementwise


class ScalarAttrs(Attrs):
    value: float


class _Scalar(Elementwise):
    attrs_type = ScalarAttrs
    values: tuple[float, ...] = (0.5, -3.0)

    def infer(self, attrs: ScalarAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        types = (TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST), TensorType(shape=(33,)))
        return tuple(Sample(ScalarAttrs(value=v), (t,)) for v in self.values for t in types)


@register
class Scale(_Scalar):
    """y = v x."""

    low_precision = EVERY
    name = "scale"

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.emit("scale", [context.grad], context.attrs)[0])

    def reference(self, attrs: ScalarAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] * attrs.value,)


@register
class AddScalar(_Scalar):
    """y = x + v."""

    low_precision = EVERY
    name = "add_scalar"

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.grad)

    def reference(self, attrs: ScalarAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] + attrs.value,)


@register
class PowScalar(_Scalar):
    """y = x ** v."""

    name = "pow_scalar"
    values = (2.0, 3.0, 0.5, -1.0, -0.5, 1.7)

    def schedules(self, signature: Signature) -> Sequence[str]:
        """None: in a chain, which a loop that streams is, powers round differently."""
        return ()

    def gradient(self, context: GradientContext) -> None:
        x = context.node.inputs[0]
        context.give(0, context.emit("pow_scalar_backward", [context.grad, x], context.attrs)[0])

    def reference(self, attrs: ScalarAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.power(inputs[0], attrs.value),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        return (rng.uniform(0.2, 2.0, sample.inputs[0].shape),)


@register
class PowScalarBackward(PowScalar):
    """dx = dy v x ** (v - 1). Inputs: dy, x."""

    name = "pow_scalar_backward"
    input_counts = (2,)
    output_names = ("dx",)

    def infer(self, attrs: ScalarAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].shape != inputs[1].shape:
            raise misfit(f"gradient {inputs[0].text()} differs from {inputs[1].text()}", "make both alike")
        return (inputs[0],)

    def gradient(self, context: GradientContext) -> None:
        raise NotImplementedError

    def reference(self, attrs: ScalarAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * attrs.value * np.power(x, attrs.value - 1) if attrs.value else np.zeros_like(dy),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        shape = sample.inputs[0].shape
        return (rng.standard_normal(shape), rng.uniform(0.2, 2.0, shape))

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, s.inputs * 2) for s in super().samples())
