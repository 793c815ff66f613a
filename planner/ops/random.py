"""Random numbers out of nothing, from dropout's generator: an element's draw depends on seed, step, node and position
only, so that slices, recomputation and repeated runs give the same numbers.

Element i, counted in memory order, has word i % 4 of the counter i / 4 (ops/dropout.py). Of a word w:

    uniform       u(w) = (w >> 8) 2^-24, in [0, 1)
    exponential   e(w) = -log(((w >> 8) | 1) 2^-24), from 6e-8 to 16.6: never 0, never infinite
    normal        of neighbouring words v, w (Box and Muller, 1958) sqrt(2 e(v)) cos(2 pi u(w)), then
                  sqrt(2 e(v)) sin(2 pi u(w)): at most 5.77, as PyTorch's
    whole         low + floor(w (high - low) / 2^32): none is more likely than another by more than its share of 2^-32

Uniform and whole numbers are the same bits here and in kernels (runtime/distributions.hpp); the others agree within
float32's rounding.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import Array, Sample, Signature, misfit, register
from planner.ops.dropout import REFERENCE_SEED, REFERENCE_STEP, philox, settled
from planner.ops.elementwise import Elementwise

Distribution = Literal["uniform", "normal", "exponential"]
FLOPS = {"uniform": 1, "normal": 30, "exponential": 20}
"""Per element, of what is done with a word."""


class DrawAttrs(Attrs):
    """`stream` tells the draws of a graph apart; the builder derives it from the node."""

    costless: ClassVar[frozenset[str]] = frozenset({"stream"})
    shape: tuple[int, ...]
    stream: int = -1
    layout: Layout = Layout.ROW_MAJOR

    @property
    def physical_shape(self) -> tuple[int, ...]:
        return TensorType(shape=self.shape, layout=self.layout).physical_shape


class RandomAttrs(DrawAttrs):
    distribution: Distribution


class RandomWholeAttrs(DrawAttrs):
    """From `low` up to, not including, `high`."""

    costless: ClassVar[frozenset[str]] = frozenset({"stream", "low", "high"})
    low: int = 0
    high: int


class _Draw(Elementwise):
    """Without inputs: there is nothing to differentiate by."""

    family = "random"
    input_counts = (0,)
    differentiable = False
    dtype: ClassVar[DType]

    def settle(self, attrs: DrawAttrs, node: str, inputs: Sequence[TensorType]) -> DrawAttrs:
        return attrs.model_copy(update={"stream": settled(attrs.stream, node)})

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not 0 <= attrs.stream < 2**32:
            raise misfit(f"{self.name} cannot draw from stream {attrs.stream}", "let the builder choose it")
        if attrs.layout is not Layout.ROW_MAJOR and len(attrs.shape) != 4:
            raise misfit(f"only rank 4 has layouts, not {attrs.shape}", "leave the layout alone")
        return (TensorType(shape=attrs.shape, dtype=self.dtype, layout=attrs.layout),)

    def reference(self, attrs: DrawAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (drawn(attrs, REFERENCE_SEED, REFERENCE_STEP),)


@register
class Random(_Draw):
    """y: float32 numbers of a distribution, independent of each other."""

    name = "random"
    attrs_type = RandomAttrs
    dtype = DType.FLOAT32

    def flops(self, signature: Signature) -> int:
        assert isinstance(signature.attrs, RandomAttrs)
        return FLOPS[signature.attrs.distribution] * signature.outputs[0].elements

    def samples(self) -> Sequence[Sample]:
        cl = Layout.CHANNELS_LAST
        return (
            Sample(RandomAttrs(distribution="uniform", shape=(333,), stream=7), ()),
            Sample(RandomAttrs(distribution="normal", shape=(3, 7, 11), stream=2**31), ()),
            Sample(RandomAttrs(distribution="normal", shape=(3, 8, 5, 7), stream=1, layout=cl), ()),
            Sample(RandomAttrs(distribution="exponential", shape=(259,), stream=8), ()),
            Sample(RandomAttrs(distribution="normal", shape=(), stream=9), ()),
        )


@register
class RandomWhole(_Draw):
    """y: int64 numbers, all equally likely."""

    name = "random_whole"
    attrs_type = RandomWholeAttrs
    dtype = DType.INT64

    def infer(self, attrs: RandomWholeAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if not (-(2**63) < attrs.low < attrs.high <= 2**63 and attrs.high - attrs.low <= 2**32):
            raise misfit(
                f"random_whole cannot draw from {attrs.low} up to {attrs.high}", "choose among 1 to 2^32 numbers"
            )
        return super().infer(attrs, inputs)

    def samples(self) -> Sequence[Sample]:
        return (
            Sample(RandomWholeAttrs(high=1000, shape=(67,), stream=3), ()),
            Sample(RandomWholeAttrs(low=-5, high=6, shape=(9, 21), stream=4), ()),
            Sample(RandomWholeAttrs(low=1 - 2**31, high=2**31 + 1, shape=(130,), stream=5), ()),
        )


def drawn(attrs: DrawAttrs, seed: int, step: int) -> Array:
    """What a node draws in a step, in its logical shape: float64, or int64."""
    count = prod(attrs.shape)
    words = philox(seed, attrs.stream, step, -(-count // 4)).reshape(-1)
    numbers = _numbers(attrs, words)[:count].reshape(attrs.physical_shape)
    return numbers.transpose(0, 3, 1, 2) if attrs.layout is Layout.CHANNELS_LAST else numbers


def _numbers(attrs: DrawAttrs, words: Array) -> Array:
    """Of all words of some counters, in order."""
    if isinstance(attrs, RandomWholeAttrs):
        product = words.astype(np.uint64) * np.uint64(attrs.high - attrs.low)
        return (product >> np.uint64(32)).astype(np.int64) + attrs.low
    assert isinstance(attrs, RandomAttrs)
    if attrs.distribution == "uniform":
        return _uniform(words)
    if attrs.distribution == "exponential":
        return _exponential(words)
    radius, angle = np.sqrt(2 * _exponential(words[0::2])), 2 * np.pi * _uniform(words[1::2])
    pairs: Array = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return pairs.reshape(-1)


def _uniform(words: Array) -> Array:
    found: Array = (words >> np.uint32(8)) * 2.0**-24
    return found


def _exponential(words: Array) -> Array:
    found: Array = -np.log((words >> np.uint32(8) | np.uint32(1)) * 2.0**-24)
    return found
