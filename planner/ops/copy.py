"""Strided copies: permute, expand (broadcast) and slice, in either layout. See also pad.py and concat.py.

A copy walks the elements of its result in memory order; `source` gives the strides at which it reads. Where the
result is only another view of the same bytes (an image from (N, C, H, W) channels-last to (N, H, W, C)), nothing
runs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import (
    EVERY,
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.strides import Strides, broadcast_strides, check_rank, memory_order, span, strides

_CL = Layout.CHANNELS_LAST


class PermuteAttrs(Attrs):
    """Dimension i of the result is dimension `axes[i]` of the input."""

    axes: tuple[int, ...]


class ExpandAttrs(Attrs):
    """`layout`: of the result, where it has rank 4."""

    shape: tuple[int, ...]
    layout: Layout = Layout.ROW_MAJOR


class SliceAttrs(Attrs):
    """Elements start, start + step, ... below stop along `axis`."""

    axis: int
    start: int
    stop: int
    step: int = 1


class SliceGradAttrs(SliceAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


class _Copy(Op):
    family = "copy"
    low_precision = EVERY
    any_dtype = True
    one_axis: ClassVar[bool] = False
    """Whether all dimensions on either side of an axis are walked as one, so that there may be any number of them."""

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if not self.one_axis:
            check_rank(self.name, inputs[0].shape)

    def source(self, signature: Signature) -> tuple[int, Strides]:
        """Offset and strides of the input over the dimensions of the result, in the result's memory order."""
        raise NotImplementedError

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        if self.alias(signature):
            return {("alias", "whole"): 1}
        return {("loops", "elements"): max(1, signature.outputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        if self.alias(signature):
            return ()
        y = signature.outputs[0]
        lo, hi = split(y.elements, mode.slices, index)
        offset, walk = self.source(signature)
        first, last = span(y.physical_shape, walk, lo, hi)
        return (reads("in0", offset + first, offset + last), writes("out0", lo, hi))


@register
class Permute(_Copy):
    """y[i...] = x[i[axes]...]. A permutation (0, 3, 1, 2) makes a channels-last image."""

    name = "permute"
    attrs_type = PermuteAttrs

    def infer(self, attrs: PermuteAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if sorted(attrs.axes) != list(range(len(x.shape))):
            raise misfit(f"{attrs.axes} is no permutation of the dimensions of {x.text()}", "name each axis once")
        last = attrs.axes == (0, 3, 1, 2) and x.layout is Layout.ROW_MAJOR
        shape = tuple(x.shape[a] for a in attrs.axes)
        return (TensorType(shape=shape, dtype=x.dtype, layout=_CL if last else Layout.ROW_MAJOR),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, PermuteAttrs)
        inverse = tuple(attrs.axes.index(a) for a in range(len(attrs.axes)))
        context.give(0, context.emit("permute", [context.grad], PermuteAttrs(axes=inverse))[0])

    def alias(self, signature: Signature) -> tuple[int, int] | None:
        y = signature.outputs[0]
        walk = self.source(signature)[1]
        dense, step = [], 1
        for extent in reversed(y.physical_shape):
            dense.append(step)
            step *= extent
        same = all(w == d for w, d, e in zip(walk, dense[::-1], y.physical_shape, strict=True) if e > 1)
        return (0, 0) if same else None

    def source(self, signature: Signature) -> tuple[int, Strides]:
        attrs = signature.attrs
        assert isinstance(attrs, PermuteAttrs)
        own = strides(signature.inputs[0])
        return 0, tuple(own[attrs.axes[a]] for a in memory_order(signature.outputs[0]))

    def reference(self, attrs: PermuteAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].transpose(attrs.axes),)

    def samples(self) -> Sequence[Sample]:
        image, plain = TensorType(shape=(3, 8, 5, 7), layout=_CL), TensorType(shape=(3, 8, 5, 7))
        return (
            Sample(PermuteAttrs(axes=(1, 0)), (TensorType(shape=(33, 40)),)),
            Sample(PermuteAttrs(axes=(0, 2, 1)), (TensorType(shape=(3, 17, 40)),)),
            Sample(PermuteAttrs(axes=(0, 2, 1, 3)), (plain,)),
            Sample(PermuteAttrs(axes=(0, 2, 3, 1)), (image,)),
            Sample(PermuteAttrs(axes=(0, 3, 1, 2)), (plain,)),
            Sample(PermuteAttrs(axes=(1, 0, 2, 3)), (image,)),
            Sample(PermuteAttrs(axes=(4, 0, 3, 1, 2)), (TensorType(shape=(2, 3, 4, 5, 6)),)),
        )


@register
class Expand(_Copy):
    """y = x repeated to `shape` by NumPy's broadcasting rules."""

    name = "expand"
    attrs_type = ExpandAttrs

    def infer(self, attrs: ExpandAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        check_rank(self.name, attrs.shape)
        missing = len(attrs.shape) - len(x.shape)
        if missing < 0 or any(d not in (1, e) for d, e in zip(x.shape, attrs.shape[missing:], strict=True)):
            raise misfit(f"{x.text()} cannot be expanded to {attrs.shape}", "aligned to the right, only 1 expands")
        layout = attrs.layout if len(attrs.shape) == 4 else Layout.ROW_MAJOR
        return (TensorType(shape=attrs.shape, dtype=x.dtype, layout=layout),)

    def gradient(self, context: GradientContext) -> None:
        from planner.ops.reduce import sum_to

        context.give(0, sum_to(context, context.grad, context.type(context.node.inputs[0]).shape, 0))

    def source(self, signature: Signature) -> tuple[int, Strides]:
        return 0, broadcast_strides(signature.inputs[0], signature.outputs[0])

    def reference(self, attrs: ExpandAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.broadcast_to(inputs[0], attrs.shape).copy(),)

    def samples(self) -> Sequence[Sample]:
        return (
            Sample(ExpandAttrs(shape=(6, 10)), (TensorType(shape=(10,)),)),
            Sample(ExpandAttrs(shape=(4, 5, 6)), (TensorType(shape=(4, 1, 6)),)),
            Sample(ExpandAttrs(shape=(2, 8, 5, 7), layout=_CL), (TensorType(shape=(2, 8, 1, 1), layout=_CL),)),
            Sample(ExpandAttrs(shape=(2, 8, 5, 7), layout=_CL), (TensorType(shape=(8, 5, 1)),)),
            Sample(ExpandAttrs(shape=(33,)), (TensorType(shape=()),)),
        )


@register
class Slice(_Copy):
    """y = x[..., start:stop:step, ...] along one axis."""

    name = "slice"
    attrs_type = SliceAttrs
    one_axis = True

    def infer(self, attrs: SliceAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if not 0 <= attrs.axis < len(x.shape) or attrs.step < 1:
            raise misfit(f"slice has no axis {attrs.axis} or step {attrs.step} in {x.text()}", "count axes from 0")
        extent = x.shape[attrs.axis]
        if not 0 <= attrs.start < attrs.stop <= extent:
            raise misfit(
                f"slice {attrs.start}:{attrs.stop} lies outside of axis {attrs.axis} of {x.text()}",
                f"use bounds from 0 to {extent} that hold an element",
            )
        size = -(-(attrs.stop - attrs.start) // attrs.step)
        shape = (*x.shape[: attrs.axis], size, *x.shape[attrs.axis + 1 :])
        return (x.model_copy(update={"shape": shape}),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, SliceAttrs)
        shape = context.type(context.node.inputs[0]).shape
        (dx,) = context.emit("slice_backward", [context.grad], SliceGradAttrs(**attrs.model_dump(), shape=shape))
        context.give(0, dx)

    def source(self, signature: Signature) -> tuple[int, Strides]:
        assert isinstance(signature.attrs, SliceAttrs)
        return source_of(signature.attrs, signature.inputs[0])

    def reference(self, attrs: SliceAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0][window(attrs)],)

    def samples(self) -> Sequence[Sample]:
        image, plain = TensorType(shape=(3, 8, 5, 7), layout=_CL), TensorType(shape=(6, 40))
        return (
            Sample(SliceAttrs(axis=1, start=3, stop=24), (plain,)),
            Sample(SliceAttrs(axis=0, start=1, stop=5), (plain,)),
            Sample(SliceAttrs(axis=1, start=2, stop=7), (image,)),
            Sample(SliceAttrs(axis=3, start=0, stop=6, step=2), (image,)),
            Sample(SliceAttrs(axis=1, start=1, stop=39, step=3), (plain,)),
        )


def source_of(attrs: SliceAttrs, whole: TensorType) -> tuple[int, Strides]:
    """Offset and strides in the whole over the dimensions of its slice, in memory order."""
    own = list(strides(whole))
    offset = attrs.start * own[attrs.axis]
    own[attrs.axis] *= attrs.step
    return offset, tuple(own[a] for a in memory_order(whole))


def window(attrs: SliceAttrs) -> tuple[Any, ...]:
    return (*(slice(None),) * attrs.axis, slice(attrs.start, attrs.stop, attrs.step))
