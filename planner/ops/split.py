"""Splitting along any axis into parts of given sizes: the reverse of concat, in one pass over memory."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import prod

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes
from planner.ops.concat import ConcatAttrs
from planner.ops.shape import FillAttrs
from planner.ops.strides import memory_order

MOST_PARTS = 1024


class SplitAttrs(Attrs):
    """The sizes of the parts along `axis`, which they fill."""

    axis: int
    sizes: tuple[int, ...]


@register
class Split(Op):
    """y0, y1, ... = the parts of x one after the other along `axis`.

    Seen as [outer, axis, inner] in memory order, x is `outer` blocks. Mode `blocks` slices those; where there is only
    one, mode `elements` slices the elements of each part."""

    name = "split"
    family = "copy"
    any_dtype = True
    attrs_type = SplitAttrs
    output_names = tuple(f"y{i}" for i in range(MOST_PARTS))

    def infer(self, attrs: SplitAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if not 0 <= attrs.axis < len(x.shape):
            raise misfit(f"split has no axis {attrs.axis} in {x.text()}", "count axes from 0")
        if sum(attrs.sizes) != x.shape[attrs.axis] or min(attrs.sizes) < 1 or len(attrs.sizes) > MOST_PARTS:
            raise misfit(
                f"sizes {attrs.sizes} do not split {x.shape[attrs.axis]}",
                f"use at most {MOST_PARTS} positive sizes that add up to the axis",
            )
        before, after = x.shape[: attrs.axis], x.shape[attrs.axis + 1 :]
        return tuple(x.model_copy(update={"shape": (*before, size, *after)}) for size in attrs.sizes)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, SplitAttrs)
        parts = []
        for index, (gradient, value) in enumerate(zip(context.grad_outputs, context.node.outputs, strict=True)):
            if gradient is None:
                zeros = FillAttrs(shape=context.type(value).shape, value=0.0)
                (gradient,) = context.emit("ones", [], zeros, f"zeros_{index}")
            parts.append(gradient)
        context.give(0, context.emit("concat", parts, ConcatAttrs(axis=attrs.axis))[0])

    def blocks(self, signature: Signature) -> tuple[int, tuple[int, ...]]:
        """Number of blocks, and the elements of one block of every part."""
        attrs, x = signature.attrs, signature.inputs[0]
        assert isinstance(attrs, SplitAttrs)
        outer = prod(x.physical_shape[: memory_order(x).index(attrs.axis)])
        return outer, tuple(t.elements // outer for t in signature.outputs)

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        outer, lengths = self.blocks(signature)
        return {("loops", "blocks"): outer} if outer > 1 else {("loops", "elements"): max(1, max(lengths) // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        outer, lengths = self.blocks(signature)
        if mode.dim == "blocks":
            lo, hi = split(outer, mode.slices, index)
            found = [writes(f"out{i}", lo * length, hi * length) for i, length in enumerate(lengths)]
            return (reads("in0", lo * sum(lengths), hi * sum(lengths)), *found)
        found = []
        for i, (length, stop) in enumerate(zip(lengths, accumulate(lengths), strict=True)):
            lo, hi = split(length, mode.slices, index)
            found += [reads("in0", stop - length + lo, stop - length + hi), writes(f"out{i}", lo, hi)]
        return tuple(found)

    def reference(self, attrs: SplitAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return tuple(np.split(inputs[0], list(accumulate(attrs.sizes))[:-1], attrs.axis))

    def samples(self) -> Sequence[Sample]:
        def case(axis: int, sizes: tuple[int, ...], shape: tuple[int, ...], last: bool = False) -> Sample:
            layout = Layout.CHANNELS_LAST if last else Layout.ROW_MAJOR
            return Sample(SplitAttrs(axis=axis, sizes=sizes), (TensorType(shape=shape, layout=layout),))

        return (
            case(1, (8, 3, 1), (2, 12, 5, 7), last=True),
            case(0, (6, 3), (9, 10)),
            case(2, (4, 2), (3, 4, 6)),
            case(1, (1,) * 5, (40, 5)),
        )
