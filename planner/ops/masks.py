"""Comparisons, choices and conversions: what models make masks with. A mask is a float32 tensor of 0 and 1."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import (
    EVERY,
    FLOATING,
    Access,
    Array,
    Facts,
    Mode,
    Sample,
    Signature,
    misfit,
    reads,
    register,
    round_bfloat16,
    split,
    writes,
)
from planner.ops.broadcast import Broadcast
from planner.ops.elementwise import Elementwise
from planner.ops.reduce import sum_to
from planner.ops.shape import FillAttrs

Relation = Literal["eq", "ne", "lt", "le", "gt", "ge"]
RELATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}

_WHOLE = frozenset({DType.INT64, DType.UINT8})


class CompareAttrs(Attrs):
    relation: Relation


class CastAttrs(Attrs):
    dtype: Literal["float32", "int64", "bfloat16"]


@register
class Compare(Broadcast):
    """y = 1 where a and b stand in the relation, else 0. Inputs: a, b, both floating point or both int64."""

    name = "compare"
    family = "choice"
    attrs_type = CompareAttrs
    input_counts = (2,)
    any_dtype = True
    differentiable = False

    def check(self, attrs: CompareAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if inputs[0].dtype is not inputs[1].dtype or inputs[0].dtype not in (DType.FLOAT32, DType.INT64):
            raise misfit(f"compare cannot compare {inputs[0].text()} with {inputs[1].text()}", "cast one of them")

    def infer(self, attrs: CompareAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (self.broadcast(inputs, DType.FLOAT32),)

    def schedules(self, signature: Signature) -> Sequence[str]:
        return super().schedules(signature) if signature.inputs[0].dtype is DType.FLOAT32 else ()

    def reference(self, attrs: CompareAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(RELATIONS[attrs.relation](*inputs), np.float64),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Few different numbers, so that some are equal."""
        kinds = {DType.INT64: np.int64}
        return tuple(rng.integers(-2, 3, t.shape).astype(kinds.get(t.dtype, np.float64)) for t in sample.inputs)

    def samples(self) -> Sequence[Sample]:
        def case(relation: Relation, a: tuple[int, ...], b: tuple[int, ...], dtype: DType = DType.FLOAT32) -> Sample:
            types = tuple(TensorType(shape=s, dtype=dtype) for s in (a, b))
            return Sample(CompareAttrs(relation=relation), types)

        return (
            case("eq", (33,), (33,)),
            case("ne", (4, 9), (), DType.INT64),
            case("lt", (6, 10), (6, 1)),
            case("le", (4, 1, 6), (5, 1)),
            case("gt", (3, 40), ()),
            case("ge", (7, 1), (1, 8), DType.INT64),
        )


@register
class Where(Broadcast):
    """y = a where mask is not 0, else b. Inputs: mask, a, b. What is not chosen may be infinite or NaN."""

    name = "where"
    family = "choice"
    input_counts = (3,)

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        """Rank-4 operands lie as the largest of a and b: the mask follows the data."""
        rank4 = [t for t in inputs[1:] if len(t.shape) == 4] or [t for t in inputs if len(t.shape) == 4]
        layout = max(rank4, key=lambda t: t.elements).layout if rank4 else None
        return (layout,) * len(inputs)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (self.broadcast(inputs, inputs[1].dtype),)

    def gradient(self, context: GradientContext) -> None:
        mask, *operands = context.node.inputs
        for index, operand in enumerate(operands, start=1):
            if not context.needs(index):
                continue
            (zero,) = context.emit("ones", [], FillAttrs(shape=(), value=0.0), f"zero_{index}", of=index)
            chosen = (context.grad, zero) if index == 1 else (zero, context.grad)
            (part,) = context.emit("where", [mask, *chosen], suffix=f"backward_{index}", of=index)
            context.give(index, sum_to(context, part, context.type(operand).shape, index))

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.where(inputs[0] != 0, inputs[1], inputs[2]),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        mask, a, b = super().draw(sample, rng)
        return ((mask > 0).astype(mask.dtype), a, b)

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST)

        def case(*shapes: tuple[int, ...]) -> Sample:
            return Sample(Attrs(), tuple(TensorType(shape=s) for s in shapes))

        return (
            case((33,), (33,), (33,)),
            case((6, 10), (), (6, 10)),
            case((4, 1, 9), (4, 5, 9), ()),
            case((5, 9), (4, 5, 1), (4, 1, 9)),
            Sample(Attrs(), (TensorType(shape=(8, 1, 1)), image, TensorType(shape=()))),
        )


@register
class Cast(Elementwise):
    """y = x in another type; to whole numbers by cutting off, as in C, to bfloat16 by rounding to the nearest. Input:
    float32, int64, uint8 or, to float32 alone, bfloat16."""

    name = "cast"
    family = "masks"
    attrs_type = CastAttrs
    any_dtype = True
    low_precision = EVERY
    differentiable = False

    def check(self, attrs: CastAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        given, wanted = inputs[0].dtype, DType(attrs.dtype)
        able = (
            given is DType.FLOAT32
            if wanted is DType.BFLOAT16
            else given in {DType.FLOAT32, *_WHOLE, *((DType.BFLOAT16,) if wanted is DType.FLOAT32 else ())}
        )
        if not able or given is wanted:
            raise misfit(f"cast cannot turn {inputs[0].text()} into {attrs.dtype}", "use float32, int64 or uint8")

    def infer(self, attrs: CastAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0].model_copy(update={"dtype": DType(attrs.dtype)}),)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ()

    def reference(self, attrs: CastAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        if attrs.dtype == "bfloat16":
            return (round_bfloat16(inputs[0]),)
        return (np.trunc(inputs[0]).astype(np.int64) if attrs.dtype == "int64" else inputs[0].astype(np.float64),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        (x,) = sample.inputs
        if x.dtype in FLOATING:
            return (rng.standard_normal(x.shape) * 10,)
        return (rng.integers(0, 100, x.shape).astype(x.dtype.value),)

    def samples(self) -> Sequence[Sample]:
        def case(dtype: Literal["float32", "int64", "bfloat16"], of: DType, shape: tuple[int, ...]) -> Sample:
            return Sample(CastAttrs(dtype=dtype), (TensorType(shape=shape, dtype=of),))

        return (
            case("float32", DType.INT64, (5, 33)),
            case("float32", DType.UINT8, (100,)),
            case("int64", DType.FLOAT32, (4, 17)),
        )


@register
class RoundWeights(Elementwise):
    """Weights as libraries want them: y = x rounded to the nearest bfloat16, (O, I, H, W) in the order O, H, W, I.
    Input: float32, as the plan stores it (ops/stored.py)."""

    name = "round_weights"
    family = "masks"
    joint_launch = 64
    differentiable = False

    def layouts(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return (Layout.ROW_MAJOR,)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = inputs
        if x.dtype is not DType.FLOAT32:
            raise misfit(f"round_weights cannot round {x.text()}", "give it float32")
        layout = Layout.CHANNELS_LAST if len(x.shape) == 4 else x.layout
        return (TensorType(shape=x.shape, dtype=DType.BFLOAT16, layout=layout),)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        """Filters are cut whole, as their order changes within."""
        shape = signature.inputs[0].shape
        return {("loops", "channels"): shape[0]} if len(shape) == 4 else super().dims(signature)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        if mode.dim != "channels":
            return super().accesses(signature, mode, stage, index, facts)
        (x,) = signature.inputs
        lo, hi = (o * (x.elements // x.shape[0]) for o in split(x.shape[0], mode.slices, index))
        return (reads("in0", lo, hi), writes("out0", lo, hi))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ()

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (round_bfloat16(inputs[0]),)

    def samples(self) -> Sequence[Sample]:
        """In packs, four channels at a time, and one by one; more and less than a GPU's block takes."""
        shapes = ((3000, 5), (24,), (300, 12, 3, 3), (5, 6, 3, 3), (40, 8, 7, 5), (33, 1, 3, 3), (9, 64, 1, 1))
        return tuple(Sample(Attrs(), (TensorType(shape=s),)) for s in shapes)
