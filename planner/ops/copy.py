"""Strided copies: permute, expand (broadcast), slice, pad and concat along any axis, in either layout.

A copy walks the elements of its result in memory order; `source` gives the strides at which it reads. Where the
result is only another view of the same bytes (an image from (N, C, H, W) channels-last to (N, H, W, C)), nothing
runs.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

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
    Signature,
    common_layout,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.strides import Strides, broadcast_strides, memory_order, span, strides

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


class PadAttrs(Attrs):
    """`pads`: (before, after) for every dimension."""

    pads: tuple[tuple[int, int], ...]
    value: float = 0.0


class ConcatAttrs(Attrs):
    axis: int


class _Copy(Op):
    family = "copy"

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
        attrs = signature.attrs
        assert isinstance(attrs, SliceAttrs)
        own = list(strides(signature.inputs[0]))
        offset = attrs.start * own[attrs.axis]
        own[attrs.axis] *= attrs.step
        return offset, tuple(own[a] for a in memory_order(signature.inputs[0]))

    def reference(self, attrs: SliceAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0][_window(attrs)],)

    def samples(self) -> Sequence[Sample]:
        image, plain = TensorType(shape=(3, 8, 5, 7), layout=_CL), TensorType(shape=(6, 40))
        return (
            Sample(SliceAttrs(axis=1, start=3, stop=24), (plain,)),
            Sample(SliceAttrs(axis=0, start=1, stop=5), (plain,)),
            Sample(SliceAttrs(axis=1, start=2, stop=7), (image,)),
            Sample(SliceAttrs(axis=3, start=0, stop=6, step=2), (image,)),
            Sample(SliceAttrs(axis=1, start=1, stop=39, step=3), (plain,)),
        )


class SliceGradAttrs(SliceAttrs):
    """`shape`: the forward input's."""

    shape: tuple[int, ...]


class _Placed(Op):
    """The input lies within a larger result that is filled first. Stage 0 fills the elements of the result, stage 1
    copies the elements of the input to where they belong."""

    family = "copy"
    stages = 2

    def target(self, signature: Signature) -> tuple[int, Strides]:
        """Offset and strides of the result over the dimensions of the input, in the input's memory order."""
        raise NotImplementedError

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.inputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, y = signature.inputs[0], signature.outputs[0]
        if stage == 0:
            return (writes("out0", *split(y.elements, mode.slices, index)),)
        lo, hi = split(x.elements, mode.slices, index)
        offset, walk = self.target(signature)
        first, last = (offset + _position(x.physical_shape, walk, e) for e in (lo, hi - 1))
        return (reads("in0", lo, hi), writes("out0", first, last + 1))


@register
class SliceBackward(_Placed):
    """dx = dy at the sliced elements, zero elsewhere."""

    name = "slice_backward"
    attrs_type = SliceGradAttrs
    output_names = ("dx",)

    def infer(self, attrs: SliceGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (dy,) = inputs
        dx = dy.model_copy(update={"shape": attrs.shape})
        if Slice().infer(attrs, (dx,)) != (dy,):
            raise misfit(f"gradient {dy.text()} is no such slice of {attrs.shape}", "keep the sliced shape")
        return (dx,)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, SliceGradAttrs)
        own = SliceAttrs(axis=attrs.axis, start=attrs.start, stop=attrs.stop, step=attrs.step)
        context.give(0, context.emit("slice", [context.grad], own)[0])

    def target(self, signature: Signature) -> tuple[int, Strides]:
        attrs = signature.attrs
        assert isinstance(attrs, SliceGradAttrs)
        own = list(strides(signature.outputs[0]))
        offset = attrs.start * own[attrs.axis]
        own[attrs.axis] *= attrs.step
        return offset, tuple(own[a] for a in memory_order(signature.outputs[0]))

    def reference(self, attrs: SliceGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dx = np.zeros(attrs.shape, inputs[0].dtype)
        dx[_window(attrs)] = inputs[0]
        return (dx,)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in Slice().samples():
            attrs = SliceGradAttrs(**s.attrs.model_dump(), shape=s.inputs[0].shape)
            found.append(Sample(attrs, Slice().infer(attrs, s.inputs)))
        return tuple(found)


@register
class Pad(_Placed):
    """y = x with `pads` constant elements around every dimension."""

    name = "pad"
    attrs_type = PadAttrs

    def infer(self, attrs: PadAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if len(attrs.pads) != len(x.shape) or any(p < 0 for pair in attrs.pads for p in pair):
            raise misfit(f"pads {attrs.pads} do not fit {x.text()}", "give (before, after), from 0, per dimension")
        shape = tuple(d + sum(p) for d, p in zip(x.shape, attrs.pads, strict=True))
        return (x.model_copy(update={"shape": shape}),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, PadAttrs)
        shape, gradient = context.type(context.node.inputs[0]).shape, context.grad
        for axis, (before, after) in enumerate(attrs.pads):
            if before or after:
                part = SliceAttrs(axis=axis, start=before, stop=before + shape[axis])
                (gradient,) = context.emit("slice", [gradient], part)
        context.give(0, gradient)

    def target(self, signature: Signature) -> tuple[int, Strides]:
        attrs = signature.attrs
        assert isinstance(attrs, PadAttrs)
        own = strides(signature.outputs[0])
        offset = sum(before * s for (before, _), s in zip(attrs.pads, own, strict=True))
        return offset, tuple(own[a] for a in memory_order(signature.outputs[0]))

    def reference(self, attrs: PadAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.pad(inputs[0], attrs.pads, constant_values=attrs.value),)

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 8, 5, 7), layout=_CL)
        return (
            Sample(PadAttrs(pads=((0, 0), (2, 3))), (TensorType(shape=(6, 33)),)),
            Sample(PadAttrs(pads=((0, 0), (0, 0), (1, 0), (2, 2)), value=-1.5), (image,)),
            Sample(PadAttrs(pads=((0, 1), (3, 0), (0, 0), (0, 0))), (image,)),
        )


@register
class Concat(Op):
    """y = the inputs one after the other along `axis`, all in the layout of the largest.

    Seen as [outer, axis, inner] in memory order, every input is `outer` blocks. Mode `blocks` slices those; where
    there is only one, mode `elements` slices the elements of each input."""

    name = "concat"
    family = "copy"
    attrs_type = ConcatAttrs

    def layouts(self, attrs: ConcatAttrs, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: ConcatAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        first = inputs[0]
        if not 0 <= attrs.axis < len(first.shape):
            raise misfit(f"concat has no axis {attrs.axis} in {first.text()}", "count axes from 0")

        def rest(type_: TensorType) -> tuple[int, ...]:
            return (*type_.shape[: attrs.axis], *type_.shape[attrs.axis + 1 :])

        if any(len(t.shape) != len(first.shape) or rest(t) != rest(first) for t in inputs):
            shapes = ", ".join(t.text() for t in inputs)
            raise misfit(f"concat cannot join {shapes} along axis {attrs.axis}", "all other dimensions must be equal")
        total = sum(t.shape[attrs.axis] for t in inputs)
        shape = (*first.shape[: attrs.axis], total, *first.shape[attrs.axis + 1 :])
        return (first.model_copy(update={"shape": shape}),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, ConcatAttrs)
        start = 0
        for index, value in enumerate(context.node.inputs):
            stop = start + context.type(value).shape[attrs.axis]
            if context.needs(index):
                part = SliceAttrs(axis=attrs.axis, start=start, stop=stop)
                context.give(index, context.emit("slice", [context.grad], part, f"backward_{index}", of=index)[0])
            start = stop

    def blocks(self, signature: Signature) -> tuple[int, tuple[int, ...]]:
        """Number of blocks, and the elements of one block of every input."""
        attrs, y = signature.attrs, signature.outputs[0]
        assert isinstance(attrs, ConcatAttrs)
        outer = prod(y.physical_shape[: memory_order(y).index(attrs.axis)])
        return outer, tuple(t.elements // outer for t in signature.inputs)

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        outer, lengths = self.blocks(signature)
        return {("loops", "blocks"): outer} if outer > 1 else {("loops", "elements"): max(1, max(lengths) // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        outer, lengths = self.blocks(signature)
        if mode.dim == "blocks":
            lo, hi = split(outer, mode.slices, index)
            found = [reads(f"in{i}", lo * length, hi * length) for i, length in enumerate(lengths)]
            return (*found, writes("out0", lo * sum(lengths), hi * sum(lengths)))
        found, start = [], 0
        for i, length in enumerate(lengths):
            lo, hi = split(length, mode.slices, index)
            found += [reads(f"in{i}", lo, hi), writes("out0", start + lo, start + hi)]
            start += length
        return tuple(found)

    def reference(self, attrs: ConcatAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(inputs, attrs.axis),)

    def samples(self) -> Sequence[Sample]:
        def case(axis: int, *shapes: tuple[int, ...], layout: Layout = Layout.ROW_MAJOR) -> Sample:
            return Sample(ConcatAttrs(axis=axis), tuple(TensorType(shape=s, layout=layout) for s in shapes))

        return (
            case(1, (2, 8, 5, 7), (2, 3, 5, 7), (2, 1, 5, 7), layout=_CL),
            case(0, (6, 10), (3, 10)),
            case(2, (3, 4, 5), (3, 4, 2)),
            case(0, (2, 8, 5, 7), (1, 8, 5, 7), layout=_CL),
        )


def _window(attrs: SliceAttrs) -> tuple[Any, ...]:
    return (*(slice(None),) * attrs.axis, slice(attrs.start, attrs.stop, attrs.step))


def _position(shape: Sequence[int], walk: Strides, element: int) -> int:
    """Where a strided view keeps its row-major element `element`."""
    position = 0
    for extent, step in zip(reversed(shape), reversed(walk), strict=True):
        position += element % extent * step
        element //= extent
    return position
