"""A tensor plus a slice of another one: how gradients meet where one of them is part of a concatenation's."""

from collections.abc import Sequence

from planner.graph.model import Layout, TensorType
from planner.ops.base import (
    EVERY,
    Access,
    Array,
    Facts,
    Mode,
    Sample,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.copy import Slice, SliceAttrs, source_of, window
from planner.ops.elementwise import Elementwise
from planner.ops.strides import Strides, span


@register
class AddSlice(Elementwise):
    """y = a + b[..., start:stop:step, ...], in one pass. Only gradients are added up so."""

    name = "add_slice"
    family = "copy"
    low_precision = EVERY
    differentiable = False
    attrs_type = SliceAttrs
    input_counts = (2,)

    def infer(self, attrs: SliceAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = inputs
        (part,) = Slice().infer(attrs, [b])
        if part != a:
            raise misfit(
                f"add_slice cannot add {part.text()} to {a.text()}", "the slice must have the first input's type"
            )
        return (a,)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        y = signature.outputs[0]
        lo, hi = split(y.elements, mode.slices, index)
        offset, walk = self.source(signature)
        first, last = span(y.physical_shape, walk, lo, hi)
        return (reads("in0", lo, hi), reads("in1", offset + first, offset + last), writes("out0", lo, hi))

    def source(self, signature: Signature) -> tuple[int, Strides]:
        """Offset and strides of the second input over the dimensions of the result, in the result's memory order."""
        assert isinstance(signature.attrs, SliceAttrs)
        return source_of(signature.attrs, signature.inputs[1])

    def reference(self, attrs: SliceAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] + inputs[1][window(attrs)],)

    def samples(self) -> Sequence[Sample]:
        def case(attrs: SliceAttrs, b: TensorType) -> Sample:
            return Sample(attrs, (*Slice().infer(attrs, [b]), b))

        image, plain = TensorType(shape=(3, 40, 5, 7), layout=Layout.CHANNELS_LAST), TensorType(shape=(6, 40))
        return (
            case(SliceAttrs(axis=1, start=0, stop=32), image),
            case(SliceAttrs(axis=1, start=3, stop=24), plain),
            case(SliceAttrs(axis=0, start=1, stop=5), plain),
            case(SliceAttrs(axis=1, start=1, stop=39, step=3), plain),
        )
