"""Functions of single elements that are flat wherever they have a gradient: rounding and signs."""

from collections.abc import Sequence

import numpy as np

from planner.graph.model import Attrs
from planner.ops.activation import Unary
from planner.ops.base import Array, Sample, register


class Flat(Unary):
    """y = f(x), to which no gradient flows."""

    differentiable = False

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Quarters, so that there are whole numbers and halves."""
        return (rng.integers(-20, 21, sample.inputs[0].shape) / 4,)


@register
class Round(Flat):
    """y = the nearest whole number, of two the even one."""

    name = "round"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.rint(inputs[0]),)


@register
class Floor(Flat):
    """y = the largest whole number that is not above x."""

    name = "floor"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.floor(inputs[0]),)


@register
class Trunc(Flat):
    """y = x without what is behind the point."""

    name = "trunc"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.trunc(inputs[0]),)


@register
class Sign(Flat):
    """y = 1 above 0, -1 below, else 0."""

    name = "sign"

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (1.0 * (inputs[0] > 0) - 1.0 * (inputs[0] < 0),)
