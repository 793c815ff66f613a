"""Sorting, and running sums: what orders or accumulates along an axis."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
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
from planner.ops.softmax import rows_of
from planner.units import Bytes

PASSES = 4
"""Of a radix sort over the bytes of a float."""


class ArgsortAttrs(Attrs):
    """`count`: how many of the places, the first ones."""

    count: int
    descending: bool = False


class CumsumAttrs(Attrs):
    """`axis`: the dimension, counted from 0. `reverse`: from its end."""

    axis: int
    reverse: bool = False


@register
class Argsort(Op):
    """y[..., i] = where the i-th element of the last dimension, in order, is in x. Of equal elements the first comes
    first; NaN is above all, as in PyTorch. Output: int64 [..., count]. Slices cut the rows."""

    name = "argsort"
    family = "order"
    attrs_type = ArgsortAttrs
    input_layout = Layout.ROW_MAJOR
    differentiable = False

    def infer(self, attrs: ArgsortAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if not x.shape or not 0 < attrs.count <= x.shape[-1]:
            raise misfit(
                f"argsort cannot find {attrs.count} places in the rows of {x.text()}",
                "count from 1 up to the extent of the last dimension",
            )
        return (TensorType(shape=(*x.shape[:-1], attrs.count), dtype=DType.INT64),)

    def flops(self, signature: Signature) -> int:
        """Steps of the sort, each about as long as an addition."""
        return 2 * PASSES * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): rows_of(signature.inputs[0])}

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """Per slice a row of keys with their places, twice."""
        return (ScratchPart("sorted", Bytes(2 * 8 * signature.inputs[0].shape[-1] * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        x, y = signature.inputs[0], signature.outputs[0]
        lo, hi = split(rows_of(x), mode.slices, index)
        return (
            reads("in0", lo * x.shape[-1], hi * x.shape[-1]),
            writes("out0", lo * y.shape[-1], hi * y.shape[-1]),
            writes("sorted", index, index + 1),
        )

    def reference(self, attrs: ArgsortAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if attrs.descending:  # backwards twice: equal elements keep their order
            last = x.shape[-1] - 1
            return (last - np.argsort(x[..., ::-1], -1, kind="stable")[..., ::-1][..., : attrs.count],)
        return (np.argsort(x, -1, kind="stable")[..., : attrs.count],)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Many are equal, two are 0.0 and -0.0, and a few are not finite."""
        x = rng.standard_normal(sample.inputs[0].shape).round(1)
        strange = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], x.shape)
        return (np.where(rng.random(x.shape) < 0.2, strange, x),)

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], count: int, descending: bool) -> Sample:
            return Sample(ArgsortAttrs(count=count, descending=descending), (TensorType(shape=shape),))

        return (
            case((33, 8), 2, True),
            case((3, 2, 40), 40, False),
            case((6, 700), 5, True),
            case((1, 3000), 3000, False),
            case((5, 1), 1, False),
        )


@register
class Cumsum(Op):
    """y[..., i, ...] = the sum of x[..., 0 to i, ...] along `axis`, or from i to the end; added up in double. Slices
    cut the dimensions outside of it, or those inside."""

    name = "cumsum"
    family = "order"
    attrs_type = CumsumAttrs
    input_layout = Layout.ROW_MAJOR

    def infer(self, attrs: CumsumAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if not 0 <= attrs.axis < len(x.shape):
            raise misfit(f"cumsum cannot go along axis {attrs.axis} of {x.text()}", "count its dimensions from 0")
        return (x,)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, CumsumAttrs)
        turned = CumsumAttrs(axis=attrs.axis, reverse=not attrs.reverse)
        context.give(0, context.emit("cumsum", [context.grad], turned, "backward")[0])

    def extents(self, signature: Signature) -> tuple[int, int, int]:
        """Elements outside of the axis, along it and inside."""
        attrs, shape = signature.attrs, signature.inputs[0].shape
        assert isinstance(attrs, CumsumAttrs)
        return (prod(shape[: attrs.axis]), shape[attrs.axis], prod(shape[attrs.axis + 1 :]))

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        outer, _, inner = self.extents(signature)
        return {("loops", "outer"): outer, ("loops", "inner"): max(1, inner // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        outer, extent, inner = self.extents(signature)
        if mode.dim == "outer":
            lo, hi = (o * extent * inner for o in split(outer, mode.slices, index))
            return (reads("in0", lo, hi), writes("out0", lo, hi))
        own = split(inner, mode.slices, index)
        return tuple(Access(o, o == "out0", (0, outer * extent), own, inner) for o in ("in0", "out0"))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def reference(self, attrs: CumsumAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        (x,) = inputs
        if attrs.reverse:
            return (np.flip(np.cumsum(np.flip(x, attrs.axis), attrs.axis), attrs.axis),)
        return (np.cumsum(x, attrs.axis),)

    def samples(self) -> Sequence[Sample]:
        cases = (
            ((6, 70), 1, False),
            ((6, 70), 0, True),
            ((3, 40, 5, 7), 2, False),
            ((1, 129), 1, True),
            ((9,), 0, False),
        )
        return tuple(
            Sample(CumsumAttrs(axis=axis, reverse=reverse), (TensorType(shape=shape),))
            for shape, axis, reverse in cases
        )
