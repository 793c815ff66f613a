"""Sums and means over axes.

Slices cut the elements of the result, so every one has one order of additions; or, where these are few, the terms that
are added: each slice has partial sums in double, which a second stage adds in the order of the slices.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import (
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    ScratchPart,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.strides import check_rank, memory_order
from planner.units import Bytes, align

LEAST_TERMS = 1024
"""Elements that are worth a slice of their own."""
WIDE = 64
"""Results that one pass over the data adds up together (runtime/reduce.hpp)."""


class ReduceAttrs(Attrs):
    """`axes`: the dimensions to reduce, counted from 0; `keepdims` leaves them as 1."""

    axes: tuple[int, ...]
    keepdims: bool = False


class SumToAttrs(Attrs):
    shape: tuple[int, ...]


class _Reduce(Op):
    family = "reduce"
    attrs_type: ClassVar[type[Attrs]] = ReduceAttrs

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if len(set(attrs.axes)) != len(attrs.axes) or any(not 0 <= a < len(x.shape) for a in attrs.axes):
            raise misfit(f"{self.name} cannot reduce axes {attrs.axes} of {x.text()}", "name each axis once, from 0")
        kept = [1 if a in attrs.axes else d for a, d in enumerate(x.shape)]
        if not attrs.keepdims:
            kept = [d for a, d in enumerate(kept) if a not in attrs.axes]
        return (_reduced_type(x, tuple(kept)),)

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        check_rank(self.name, inputs[0].shape)

    def reduced_axes(self, signature: Signature) -> tuple[int, ...]:
        """The input dimensions that are added up."""
        attrs = signature.attrs
        assert isinstance(attrs, ReduceAttrs)
        return attrs.axes

    def flops(self, signature: Signature) -> int:
        return signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        elements, outputs = signature.inputs[0].elements, signature.outputs[0].elements
        found = {("loops", "elements"): max(1, outputs // 16)}
        most = min(elements // outputs, elements // LEAST_TERMS)
        if most > 1:
            found["loops", "terms"] = most
        return found

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        return mode.dim == "terms" and signature.outputs[0].elements >= WIDE * mode.slices

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if mode.dim == "terms" else 1

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        if mode.dim != "terms":
            return ()
        return (ScratchPart("partial", Bytes(align(8 * signature.outputs[0].elements) * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, outputs = signature.inputs[0], signature.outputs[0].elements
        lo, hi = split(outputs, mode.slices, index)
        if mode.dim != "terms":
            return (reads("in0", 0, x.elements), writes("out0", lo, hi))
        if stage == 1:
            return (reads("partial", 0, mode.slices), writes("out0", lo, hi))
        first, last = split(x.elements // outputs, mode.slices, index)
        outer = self._outermost(signature)
        read = (first * outputs, last * outputs) if outer else (0, x.elements)
        return (reads("in0", *read), writes("partial", index, index + 1))

    def _outermost(self, signature: Signature) -> bool:
        """Whether the reduced axes are the outermost in memory: then some of the terms are a part of the data."""
        x, reduced = signature.inputs[0], set(self.reduced_axes(signature))
        longer = [a in reduced for a in memory_order(x) if x.shape[a] > 1]
        return longer == sorted(longer, reverse=True)

    def _spread(self, context: GradientContext, gradient: str) -> None:
        """Deliver the gradient, repeated over the reduced axes."""
        from planner.ops.copy import ExpandAttrs
        from planner.ops.shape import ReshapeAttrs

        attrs = context.attrs
        assert isinstance(attrs, ReduceAttrs)
        x = context.type(context.node.inputs[0])
        ones = tuple(1 if a in attrs.axes else d for a, d in enumerate(x.shape))
        if context.type(gradient).shape != ones:
            (gradient,) = context.emit("reshape", [gradient], ReshapeAttrs(shape=ones))
        if x.shape != ones:
            (gradient,) = context.emit("expand", [gradient], ExpandAttrs(shape=x.shape, layout=x.layout))
        context.give(0, gradient)

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 40, 5, 7), layout=Layout.CHANNELS_LAST)
        return (
            Sample(ReduceAttrs(axes=(1,)), (TensorType(shape=(6, 10)),)),
            Sample(ReduceAttrs(axes=(0,), keepdims=True), (TensorType(shape=(33, 18)),)),
            Sample(ReduceAttrs(axes=(0, 2, 3)), (image,)),
            Sample(ReduceAttrs(axes=(2, 3), keepdims=True), (image,)),
            Sample(ReduceAttrs(axes=(1,)), (image,)),
            Sample(ReduceAttrs(axes=(3,)), (image,)),
            Sample(ReduceAttrs(axes=(2,)), (TensorType(shape=(2, 70, 9, 3), layout=Layout.CHANNELS_LAST),)),
            Sample(ReduceAttrs(axes=(0, 1)), (TensorType(shape=(4, 5)),)),
            Sample(ReduceAttrs(axes=(0, 1)), (TensorType(shape=(90, 61)),)),
            Sample(ReduceAttrs(axes=(0, 2)), (TensorType(shape=(13, 18, 40)),)),
            Sample(ReduceAttrs(axes=(0, 2)), (TensorType(shape=(60, 3, 40)),)),
        )


def _reduced_type(x: TensorType, shape: tuple[int, ...]) -> TensorType:
    """Rank 4 stays in its layout."""
    return TensorType(shape=shape, dtype=x.dtype, layout=x.layout if len(shape) == 4 else Layout.ROW_MAJOR)


@register
class ReduceSum(_Reduce):
    """y = sum of x over `axes`."""

    name = "reduce_sum"

    def gradient(self, context: GradientContext) -> None:
        self._spread(context, context.grad)

    def reference(self, attrs: ReduceAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].sum(attrs.axes, keepdims=attrs.keepdims),)


@register
class ReduceMean(_Reduce):
    """y = mean of x over `axes`."""

    name = "reduce_mean"

    def gradient(self, context: GradientContext) -> None:
        from planner.ops.scalar import ScalarAttrs

        attrs = context.attrs
        assert isinstance(attrs, ReduceAttrs)
        shape = context.type(context.node.inputs[0]).shape
        factor = ScalarAttrs(value=1 / prod(shape[a] for a in attrs.axes))
        self._spread(context, context.emit("scale", [context.grad], factor)[0])

    def reference(self, attrs: ReduceAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].mean(attrs.axes, keepdims=attrs.keepdims),)


@register
class SumTo(_Reduce):
    """The gradient of broadcasting: sums over the dimensions that `shape` lacks or has as 1."""

    name = "sum_to"
    attrs_type = SumToAttrs

    def infer(self, attrs: SumToAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        missing = len(x.shape) - len(attrs.shape)
        if missing < 0 or any(a not in (1, b) for a, b in zip(attrs.shape, x.shape[missing:], strict=True)):
            raise misfit(f"{x.text()} cannot be summed to {attrs.shape}", "the shape must broadcast to the data's")
        return (_reduced_type(x, attrs.shape),)

    def reduced_axes(self, signature: Signature) -> tuple[int, ...]:
        shape, target = signature.inputs[0].shape, signature.outputs[0].shape
        missing = len(shape) - len(target)
        return tuple(a for a in range(len(shape)) if a < missing or target[a - missing] < shape[a])

    def gradient(self, context: GradientContext) -> None:
        from planner.ops.copy import ExpandAttrs

        x = context.type(context.node.inputs[0])
        (dx,) = context.emit("expand", [context.grad], ExpandAttrs(shape=x.shape, layout=x.layout))
        context.give(0, dx)

    def reference(self, attrs: SumToAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        missing = x.ndim - len(attrs.shape)
        axes = tuple(a for a in range(x.ndim) if a < missing or attrs.shape[a - missing] < x.shape[a])
        return (np.asarray(x.sum(axes)).reshape(attrs.shape),)

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 40, 5, 7), layout=Layout.CHANNELS_LAST)
        return (
            Sample(SumToAttrs(shape=(10,)), (TensorType(shape=(6, 10)),)),
            Sample(SumToAttrs(shape=(6, 1)), (TensorType(shape=(6, 33)),)),
            Sample(SumToAttrs(shape=(1, 40, 1, 1)), (image,)),
            Sample(SumToAttrs(shape=(40, 1, 7)), (image,)),
            Sample(SumToAttrs(shape=()), (TensorType(shape=(5, 3)),)),
            Sample(SumToAttrs(shape=(1, 21, 1, 1)), (TensorType(shape=(5, 21, 13, 7), layout=Layout.CHANNELS_LAST),)),
        )


def sum_to(context: GradientContext, gradient: str, shape: tuple[int, ...], index: int) -> str:
    """Emit what brings the gradient of a broadcast result to the shape of input `index`."""
    from planner.ops.shape import ReshapeAttrs

    type_ = context.type(gradient)
    if type_.shape == shape:
        return gradient
    if type_.elements == prod(shape):
        return context.emit("reshape", [gradient], ReshapeAttrs(shape=shape), "reshape", of=index)[0]
    return context.emit("sum_to", [gradient], SumToAttrs(shape=shape), "sum", of=index)[0]
