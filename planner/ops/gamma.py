"""The logarithm of the gamma function, its derivatives (digamma, trigamma), and their gradients: densities of counts
and of proportions have them."""

from collections.abc import Sequence
from math import lgamma, pi

import numpy as np

from planner.graph.model import Attrs
from planner.ops.activation import Unary, UnaryBackward
from planner.ops.base import Array, Sample, register

_SHIFT = 12
"""Beyond, the asymptotic series are exact to float64."""


class _OfGamma(Unary):
    needs = "x"

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Positive numbers, and negative ones that are not near a pole."""
        shape = sample.inputs[0].shape
        between = -rng.integers(0, 6, shape) - rng.uniform(0.2, 0.8, shape)
        return (np.where(rng.random(shape) < 0.3, between, rng.uniform(0.1, 20, shape)),)


@register
class Lgamma(_OfGamma):
    """y = log |gamma(x)|, infinite at 0, -1, -2, ..."""

    name = "lgamma"
    cost = 80

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        def one(x: float) -> float:
            return np.inf if x <= 0 and x == np.floor(x) else lgamma(x)

        return (np.vectorize(one, otypes=[inputs[0].dtype])(inputs[0]),)


@register
class LgammaBackward(UnaryBackward):
    """dx = dy digamma(x). Inputs: dy, x."""

    name = "lgamma_backward"
    forward = Lgamma

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * digamma(x),)


@register
class Digamma(_OfGamma):
    """y = d log gamma(x) / dx; NaN at -1, -2, ..., infinite at 0."""

    name = "digamma"
    cost = 80

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (digamma(inputs[0]),)


@register
class DigammaBackward(UnaryBackward):
    """dx = dy trigamma(x). Inputs: dy, x."""

    name = "digamma_backward"
    forward = Digamma

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * trigamma(x),)


@register
class Trigamma(_OfGamma):
    """y = d digamma(x) / dx, infinite at 0, -1, -2, ..."""

    name = "trigamma"
    cost = 80

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (trigamma(inputs[0]),)


@register
class TrigammaBackward(UnaryBackward):
    """dx = dy d trigamma(x) / dx. Inputs: dy, x."""

    name = "trigamma_backward"
    forward = Trigamma

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        return (dy * _tetragamma(x),)


def digamma(x: Array) -> Array:
    """By recurrence to `_SHIFT` and more, then its asymptotic series (Abramowitz & Stegun, 6.3.18); by reflection below
    1/2. So are the others."""
    t, z = _arguments(x)
    w = 1 / z**2
    series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w * (1 / 132 - w * 691 / 32760)))))
    y = np.log(z) - 0.5 / z - series - sum(1 / (t + k) for k in range(_SHIFT))
    with np.errstate(divide="ignore", invalid="ignore"):
        reflected = y - pi / np.tan(pi * (x - np.round(x)))
    pole = np.where(x == 0, -np.copysign(np.inf, x), np.nan)
    reflected = np.where(x == np.round(x), pole, reflected)
    return np.where(x < 0.5, reflected, y).astype(x.dtype)


def trigamma(x: Array) -> Array:
    t, z = _arguments(x)
    w = 1 / z**2
    series = (1 / 6 - w * (1 / 30 - w * (1 / 42 - w * (1 / 30 - w * 5 / 66)))) * w / z
    y = 1 / z + 0.5 * w + series + sum(1 / (t + k) ** 2 for k in range(_SHIFT))
    with np.errstate(divide="ignore"):
        reflected = (pi / np.sin(pi * (x - np.round(x)))) ** 2 - y
    return np.where(x < 0.5, reflected, y).astype(x.dtype)


def _tetragamma(x: Array) -> Array:
    t, z = _arguments(x)
    w = 1 / z**2
    series = (1 / 2 - w * (1 / 6 - w * (1 / 6 - w * (3 / 10 - w * 5 / 6)))) * w * w
    y = -w - w / z - series - sum(2 / (t + k) ** 3 for k in range(_SHIFT))
    with np.errstate(divide="ignore", invalid="ignore"):
        angle = pi * (x - np.round(x))
        reflected = y - 2 * np.cos(angle) * (pi / np.sin(angle)) ** 3
    return np.where(x < 0.5, reflected, y).astype(x.dtype)


def _arguments(x: Array) -> tuple[Array, Array]:
    """x, or 1 - x below 1/2; and that much further."""
    t = np.where(x < 0.5, 1 - x.astype(np.float64), x.astype(np.float64))
    return t, t + _SHIFT
