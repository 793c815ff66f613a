"""Square matrices, many at once: inverses, determinants, Cholesky factors. Computed in double precision and rounded
once, so that a product with an inverse is as near as solving in float32 is; slices cut the matrices.

A singular matrix has an inverse of infinities and NaN, one that is not positive definite a factor of NaN: nothing looks
at the numbers while a step runs.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import ClassVar

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
    ScratchPart,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.copy import PermuteAttrs
from planner.ops.matmul import MatmulAttrs
from planner.ops.shape import ReshapeAttrs
from planner.units import Bytes

DOUBLE = 8


class OfMatrices(Op):
    """Inputs, and outputs unless another shape is told: [..., n, n]."""

    family = "matrices"
    input_layout = Layout.ROW_MAJOR
    rooms: ClassVar[int] = 1
    """Matrices in double precision that one is computed with, besides n numbers."""

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        shape = inputs[0].shape
        if len(shape) < 2 or shape[-1] != shape[-2] or any(t.shape != shape for t in inputs):
            raise misfit(f"{self.name} cannot take {', '.join(t.text() for t in inputs)}", "give it square matrices")
        return (inputs[0],)

    def sizes(self, signature: Signature) -> tuple[int, int]:
        """Matrices, and rows of each."""
        shape = signature.inputs[0].shape
        return prod(shape[:-2]), shape[-1]

    def flops(self, signature: Signature) -> int:
        matrices, n = self.sizes(signature)
        return 2 * self.rooms * matrices * n**3

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "matrices"): self.sizes(signature)[0]}

    def room(self, signature: Signature) -> Bytes:
        """What one matrix is computed with."""
        n = self.sizes(signature)[1]
        return Bytes(DOUBLE * (self.rooms * n * n + n))

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (ScratchPart("room", Bytes(self.room(signature) * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        matrices = self.sizes(signature)[0]
        lo, hi = split(matrices, mode.slices, index)
        inputs = [(f"in{i}", t.elements // matrices) for i, t in enumerate(signature.inputs)]
        outputs = [(f"out{i}", t.elements // matrices) for i, t in enumerate(signature.outputs)]
        return (
            *(reads(operand, lo * each, hi * each) for operand, each in inputs),
            *(writes(operand, lo * each, hi * each) for operand, each in outputs),
            writes("room", index, index + 1),
        )

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Far from singular."""
        return tuple(_regular(t.shape, rng) for t in sample.inputs)

    def samples(self) -> Sequence[Sample]:
        shapes = ((1, 1), (5, 3, 3), (2, 3, 8, 8), (33, 33), (7, 2, 2))
        count = self.input_counts[0]
        return tuple(Sample(Attrs(), (TensorType(shape=shape),) * count) for shape in shapes)


@register
class Inverse(OfMatrices):
    """y = x^-1, by elimination with the largest pivot of every column."""

    name = "inverse"

    def gradient(self, context: GradientContext) -> None:
        """dx = -y^T dy y^T."""
        y = context.node.outputs[0]
        left = context.emit("matmul", [y, context.grad], MatmulAttrs(transpose_a=True, exact=True), "backward_left")[0]
        both = context.emit("matmul", [left, y], MatmulAttrs(transpose_b=True, exact=True), "backward_right")[0]
        context.give(0, context.emit("neg", [both])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.linalg.inv(inputs[0]),)


@register
class LogDeterminant(OfMatrices):
    """The logarithm of |det x|, and the sign of det x, [...] each; of a singular matrix minus infinity and 0."""

    name = "log_determinant"
    output_names = ("y", "sign")

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        (x,) = super().infer(attrs, inputs)
        return (TensorType(shape=x.shape[:-2], dtype=x.dtype),) * 2

    def gradient(self, context: GradientContext) -> None:
        """dx = dy x^-T."""
        if context.grad_outputs[0] is None:  # the sign's alone
            return
        shape = context.type(context.node.inputs[0]).shape
        rank = len(shape)
        inverse = context.emit("inverse", [context.node.inputs[0]], suffix="backward_inverse")[0]
        axes = PermuteAttrs(axes=(*range(rank - 2), rank - 1, rank - 2))
        turned = context.emit("permute", [inverse], axes, "backward_turned")[0]
        wide = context.emit("reshape", [context.grad], ReshapeAttrs(shape=(*shape[:-2], 1, 1)), "backward_wide")[0]
        context.give(0, context.emit("mul", [turned, wide])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        sign, y = np.linalg.slogdet(inputs[0])
        return (y.astype(inputs[0].dtype), sign.astype(inputs[0].dtype))


@register
class Cholesky(OfMatrices):
    """The lower triangular L with L L^T = x, of whose entries the lower triangle is read."""

    name = "cholesky"

    def gradient(self, context: GradientContext) -> None:
        context.give(0, context.emit("cholesky_backward", [context.grad, context.node.outputs[0]])[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.linalg.cholesky(inputs[0]),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Symmetric: what is above the diagonal counts in the gradient as if it were below."""
        x = _regular(sample.inputs[0].shape, rng)
        return (x @ np.swapaxes(x, -1, -2),)


@register
class CholeskyBackward(OfMatrices):
    """dx = (S + S^T) / 2 with S = L^-T P(L^T dL) L^-1, where P takes the lower triangle and half of the diagonal
    (Murray, Differentiation of the Cholesky decomposition, 2016). Inputs: dL, L."""

    name = "cholesky_backward"
    input_counts = (2,)
    output_names = ("dx",)
    rooms = 2

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, y = inputs
        inner = np.tril(np.swapaxes(y, -1, -2) @ np.tril(dy))
        inner -= 0.5 * inner * np.eye(y.shape[-1])
        inverse = np.linalg.inv(y)
        s = np.swapaxes(inverse, -1, -2) @ inner @ inverse
        return ((0.5 * (s + np.swapaxes(s, -1, -2))).astype(y.dtype),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        shape = sample.inputs[0].shape
        return (rng.standard_normal(shape), np.tril(_regular(shape, rng)))


def _regular(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    n = shape[-1]
    found: Array = rng.standard_normal(shape) / n**0.5 + np.eye(n) * rng.uniform(2, 3, n)
    return found
