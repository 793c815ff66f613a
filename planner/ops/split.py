"""Splitting along any axis into parts of given sizes: the reverse of concat, in one pass over memory."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, misfit, register
from planner.ops.blocks import Blocks
from planner.ops.copy import ExpandAttrs
from planner.ops.shape import FillAttrs

MOST_PARTS = 1024


class SplitAttrs(Attrs):
    """The sizes of the parts along `axis`, which they fill."""

    axis: int
    sizes: tuple[int, ...]


@register
class Split(Blocks):
    """y0, y1, ... = the parts of x one after the other along `axis`."""

    name = "split"
    family = "copy"
    low_precision = EVERY
    any_dtype = True
    parts_are_read = False
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
        parts = [g or self._zeros(context, index) for index, g in enumerate(context.grad_outputs)]
        context.give(0, context.joined(parts, axis=attrs.axis))

    def _zeros(self, context: GradientContext, index: int) -> str:
        """The gradient of a part that nobody uses, laid out like the others."""
        part = context.type(context.node.outputs[index])
        (zero,) = context.emit("ones", [], FillAttrs(shape=(), value=0.0), f"zero_{index}")
        wide = ExpandAttrs(shape=part.shape, layout=part.layout)
        (zeros,) = context.emit("expand", [zero], wide, f"zeros_{index}")
        return zeros

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
