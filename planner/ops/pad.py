"""Copies into a larger result that is filled first: padding with a constant, and the gradient of a slice."""

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
from planner.ops.copy import Slice, SliceAttrs, SliceGradAttrs, window
from planner.ops.strides import Strides, check_rank, memory_order, strides


class PadAttrs(Attrs):
    """`pads`: (before, after) for every dimension."""

    pads: tuple[tuple[int, int], ...]
    value: float = 0.0


class _Placed(Op):
    """The input lies within a larger result that is filled first. Stage 0 fills the elements of the result, stage 1
    copies the elements of the input to where they belong."""

    family = "copy"
    low_precision = EVERY
    any_dtype = True
    stages = 2
    one_axis: ClassVar[bool] = False
    """Whether all dimensions on either side of an axis are walked as one, so that there may be any number of them."""

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if not self.one_axis:
            check_rank(self.name, inputs[0].shape)

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
    one_axis = True
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
        dx[window(attrs)] = inputs[0]
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
        image = TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST)
        return (
            Sample(PadAttrs(pads=((0, 0), (2, 3))), (TensorType(shape=(6, 33)),)),
            Sample(PadAttrs(pads=((0, 0), (0, 0), (1, 0), (2, 2)), value=-1.5), (image,)),
            Sample(PadAttrs(pads=((0, 1), (3, 0), (0, 0), (0, 0))), (image,)),
        )


def _position(shape: Sequence[int], walk: Strides, element: int) -> int:
    """Where a strided view keeps its row-major element `element`."""
    position = 0
    for extent, step in zip(reversed(shape), reversed(walk), strict=True):
        position += element % extent * step
        element //= extent
    return position
