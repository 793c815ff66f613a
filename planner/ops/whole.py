"""Arithmetic of whole numbers (int64): what models compute indices and positions with. It has no gradient."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from planner.graph.model import Attrs, DType, TensorType
from planner.ops.base import Array, Mode, Sample, Signature, register
from planner.ops.broadcast import Broadcast

Function = Literal[
    "add",
    "sub",
    "mul",
    "floor_divide",
    "remainder",
    "maximum",
    "minimum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "bitwise_left_shift",
    "bitwise_right_shift",
]
"""PyTorch's names."""


def _divide(a: Any, b: Any) -> Any:
    """Rounded down; by zero it is 0, as NumPy has it."""
    return np.where(b == 0, 0, np.floor_divide(a, np.where(b == 0, 1, b)))


def _within(shift: Any) -> Any:
    """Whether a number of 64 bits has such a shift; by others nothing is left of it but, to the right, its sign."""
    return (shift >= 0) & (shift < 64)


FUNCTIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "floor_divide": _divide,
    "remainder": lambda a, b: np.where(b == 0, 0, a - _divide(a, b) * b),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": lambda a, b: np.where(_within(b), np.left_shift(a, b), 0),
    "bitwise_right_shift": lambda a, b: np.right_shift(a, np.where(_within(b), b, 63)),
}


class WholeAttrs(Attrs):
    function: Function


@register
class Whole(Broadcast):
    """y = f(a, b). Inputs: a, b, both int64; they are broadcast. Quotients are rounded down, remainders have the
    divisor's sign; a division by zero gives 0."""

    name = "whole"
    family = "masks"
    attrs_type = WholeAttrs
    input_counts = (2,)
    integers: ClassVar[Mapping[int, DType]] = {0: DType.INT64, 1: DType.INT64}
    differentiable = False

    def infer(self, attrs: WholeAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (self.broadcast(inputs, DType.INT64),)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        y = signature.outputs[0]
        return tuple((0, i) for i, t in enumerate(signature.inputs) if t == y)

    def reference(self, attrs: WholeAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(FUNCTIONS[attrs.function](*inputs), np.int64),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        return tuple(rng.integers(-9, 10, t.shape) for t in sample.inputs)

    def samples(self) -> Sequence[Sample]:
        def case(function: Function, a: tuple[int, ...], b: tuple[int, ...]) -> Sample:
            types = tuple(TensorType(shape=s, dtype=DType.INT64) for s in (a, b))
            return Sample(WholeAttrs(function=function), types)

        return (
            case("add", (33,), (33,)),
            case("sub", (4, 9), ()),
            case("mul", (6, 10), (6, 1)),
            case("floor_divide", (4, 1, 6), (5, 1)),
            case("remainder", (7, 11), (7, 11)),
            case("maximum", (3, 40), ()),
            case("minimum", (7, 1), (1, 8)),
            case("bitwise_and", (7, 11), (7, 11)),
            case("bitwise_or", (6, 10), (6, 1)),
            case("bitwise_xor", (33,), (33,)),
            case("bitwise_left_shift", (4, 9), (4, 9)),
            case("bitwise_right_shift", (4, 9), (9,)),
        )
