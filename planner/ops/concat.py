"""Concatenation along any axis, in either layout."""

from collections.abc import Sequence

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, common_layout, misfit, register
from planner.ops.blocks import Blocks
from planner.ops.copy import SliceAttrs


class ConcatAttrs(Attrs):
    axis: int


def _joined(context: GradientContext) -> tuple[str, ...]:
    """What the node joins, in as few values as there are: its first inputs may have been joined before, as in dense
    blocks, and take their gradient through that. It then is as wide as what it is added to."""
    node, longest = context.node, context.node.inputs[:1]
    joined = longest[0]
    for other in context.earlier:
        own = other.op == node.op and other.attrs == node.attrs and other.inputs == node.inputs[: len(other.inputs)]
        if own and len(longest) < len(other.inputs) < len(node.inputs):
            longest, joined = other.inputs, other.outputs[0]
    return (joined, *node.inputs[len(longest) :])


@register
class Concat(Blocks):
    """y = the inputs one after the other along `axis`, all in the layout of the largest."""

    name = "concat"
    family = "copy"
    low_precision = EVERY
    any_dtype = True
    input_counts = ()
    parts_are_read = True
    attrs_type = ConcatAttrs

    def layouts(self, attrs: ConcatAttrs, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: ConcatAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        first = inputs[0]
        if not 0 <= attrs.axis < len(first.shape):
            raise misfit(f"concat has no axis {attrs.axis} in {first.text()}", "count axes from 0")

        def rest(type_: TensorType) -> tuple[int, ...]:
            return (*type_.shape[: attrs.axis], *type_.shape[attrs.axis + 1 :])

        if any((len(t.shape), t.dtype, rest(t)) != (len(first.shape), first.dtype, rest(first)) for t in inputs):
            shapes = ", ".join(t.text() for t in inputs)
            raise misfit(
                f"concat cannot join {shapes} along axis {attrs.axis}",
                "all other dimensions and the dtypes must be equal",
            )
        total = sum(t.shape[attrs.axis] for t in inputs)
        shape = (*first.shape[: attrs.axis], total, *first.shape[attrs.axis + 1 :])
        return (first.model_copy(update={"shape": shape}),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, ConcatAttrs)
        start = 0
        for index, value in enumerate(_joined(context)):
            stop = start + context.type(value).shape[attrs.axis]
            part = SliceAttrs(axis=attrs.axis, start=start, stop=stop)
            context.give_part(value, part, f"backward_{index}")
            start = stop

    def reference(self, attrs: ConcatAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.concatenate(inputs, attrs.axis),)

    def samples(self) -> Sequence[Sample]:
        def case(axis: int, *shapes: tuple[int, ...], layout: Layout = Layout.ROW_MAJOR) -> Sample:
            return Sample(ConcatAttrs(axis=axis), tuple(TensorType(shape=s, layout=layout) for s in shapes))

        return (
            case(1, (2, 8, 5, 7), (2, 3, 5, 7), (2, 1, 5, 7), layout=Layout.CHANNELS_LAST),
            case(0, (6, 10), (3, 10)),
            case(2, (3, 4, 5), (3, 4, 2)),
            case(0, (2, 8, 5, 7), (1, 8, 5, 7), layout=Layout.CHANNELS_LAST),
        )
