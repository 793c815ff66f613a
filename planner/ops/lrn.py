"""Local response normalisation across channels, channels-last (AlexNet)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes

MAX_SIZE = 64
"""Channels that one window may hold (lrn_max_size of runtime/lrn.hpp)."""


class LrnAttrs(Attrs):
    """`size`: channels per window, size / 2 of them before the own channel."""

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0


class _Lrn(Op):
    """Slices cut the rows (image positions); the windows lie within a row."""

    family = "lrn"
    input_layout = Layout.CHANNELS_LAST
    attrs_type = LrnAttrs
    cost: ClassVar[int]

    def infer(self, attrs: LrnAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs[0].shape) not in (2, 4) or any(t != inputs[0] for t in inputs):
            raise misfit(f"{self.name} cannot normalise {inputs[0].text()}", "use (N, C) or (N, C, H, W)")
        if not 1 <= attrs.size <= MAX_SIZE:
            raise misfit(f"{self.name} has windows of {attrs.size} channels", f"use 1 to {MAX_SIZE}")
        return (inputs[0],)

    def flops(self, signature: Signature) -> int:
        attrs = signature.attrs
        assert isinstance(attrs, LrnAttrs)
        return (self.cost + attrs.size) * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        x = signature.inputs[0]
        return {("loops", "rows"): x.elements // x.shape[1]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x = signature.inputs[0]
        lo, hi = (r * x.shape[1] for r in split(x.elements // x.shape[1], mode.slices, index))
        return (*(reads(f"in{i}", lo, hi) for i in range(len(signature.inputs))), writes("out0", lo, hi))

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST)
        wide = TensorType(shape=(2, 300, 1, 3), layout=Layout.CHANNELS_LAST)
        return (
            Sample(LrnAttrs(size=5), (image,)),
            Sample(LrnAttrs(size=4, alpha=0.5, beta=0.6, k=2.0), (TensorType(shape=(33, 10)),)),
            Sample(LrnAttrs(size=5, alpha=1e-2), (wide,)),
            Sample(LrnAttrs(size=9, alpha=0.1), (TensorType(shape=(4, 3)),)),
        )


@register
class Lrn(_Lrn):
    """y_c = x_c d_c^-beta with d_c = k + alpha / size * sum of x^2 over channels c - size/2 .. c + (size-1)/2."""

    name = "lrn"
    cost = 8

    def gradient(self, context: GradientContext) -> None:
        (dx,) = context.emit("lrn_backward", [context.grad, context.node.inputs[0]], context.attrs)
        context.give(0, dx)

    def reference(self, attrs: LrnAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] * _denominator(attrs, inputs[0]) ** -attrs.beta,)


@register
class LrnBackward(_Lrn):
    """dx_c = dy_c d_c^-beta - 2 alpha beta / size * x_c * sum of dy x d^(-beta-1) over the windows that hold c.
    Inputs: dy, x."""

    name = "lrn_backward"
    input_counts = (2,)
    output_names = ("dx",)
    cost = 14

    def reference(self, attrs: LrnAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x = inputs
        d = _denominator(attrs, x)
        ratio = _window_sums(dy * x * d ** (-attrs.beta - 1), (attrs.size - 1) // 2, attrs.size // 2)
        return (dy * d**-attrs.beta - 2 * attrs.alpha * attrs.beta / attrs.size * x * ratio,)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, s.inputs * 2) for s in super().samples())


def _window_sums(x: Array, before: int, after: int) -> Array:
    """Sums over channels c - before .. c + after."""
    pads: list[Any] = [(0, 0)] * x.ndim
    pads[1] = (before, after)
    view = np.lib.stride_tricks.sliding_window_view(np.pad(x, pads), before + after + 1, axis=1)
    sums: Array = view.sum(-1)
    return sums


def _denominator(attrs: LrnAttrs, x: Array) -> Array:
    squares = _window_sums(x * x, attrs.size // 2, (attrs.size - 1) // 2)
    denominator: Array = attrs.k + attrs.alpha / attrs.size * squares
    return denominator
