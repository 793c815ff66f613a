"""Matrix products: fully connected layers with their gradients, and general (batched) products.

Every op here is one product of strided matrices (ops/product.py), so that transposed operands need no copies.
"""

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, TensorType
from planner.ops.base import (
    EVERY,
    Access,
    Array,
    Facts,
    Mode,
    Sample,
    ScratchPart,
    Signature,
    accumulated,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.library import library_access, library_part
from planner.ops.product import Matrix, Product, ProductOp
from planner.ops.tiles import most_tiles
from planner.units import Bytes, align

LEAST_DEPTH = 64
"""Rows of the operands that are worth a partial sum of all weights."""
LEAST_FEATURES = 16
"""Output features with which a slice has enough to do."""


class LinearGradAttrs(Attrs):
    """`bias`: also return db."""

    bias: bool = False


class MatmulAttrs(Attrs):
    """Transposes swap the last two dimensions of an operand. `exact`: in float32 also where others take bfloat16 or
    TF32, as PyTorch's Fourier transforms are."""

    optional: ClassVar[frozenset[str]] = frozenset({"exact"})
    transpose_a: bool = False
    transpose_b: bool = False
    exact: bool = False


def _rows(type_: TensorType) -> int:
    return type_.elements // type_.shape[-1]


def _samples_of(shapes: Sequence[tuple[tuple[int, ...], ...]]) -> tuple[tuple[TensorType, ...], ...]:
    return tuple(tuple(TensorType(shape=s) for s in case) for case in shapes)


@register
class Linear(ProductOp):
    """y[..., o] = b[o] + sum over i of x[..., i] w[o, i]. Inputs: x [..., in], w [out, in], [b [out]]."""

    low_precision = EVERY
    name = "linear"
    input_counts = (2, 3)
    shares_weights = True

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, w = inputs[0], inputs[1]
        if len(w.shape) != 2 or not x.shape or x.shape[-1] != w.shape[1]:
            raise misfit(
                f"linear cannot multiply data {x.text()} by weights {w.text()}",
                "weights are (out features, in features); the data's last dimension is in features",
            )
        if len(inputs) > 2 and inputs[2].shape != w.shape[:1]:
            raise misfit(f"the bias {inputs[2].text()} does not fit weights {w.text()}", "use one bias per row")
        return (TensorType(shape=(*x.shape[:-1], w.shape[0]), dtype=x.dtype),)

    def gradient(self, context: GradientContext) -> None:
        self.gradient_of_weights(context, context.node.inputs[0], context.grad)
        self.gradient_of_data(context)

    def gradient_of_weights(self, context: GradientContext, x: str, dy: str) -> None:
        bias = context.node.inputs[2:]
        if context.needs(1) or (bias and context.needs(2)):
            attrs = LinearGradAttrs(bias=bool(bias))
            results = context.emit("linear_backward_weights", [x, dy], attrs, "backward_weights", of=1)
            for index, gradient in enumerate(results, start=1):
                context.give(index, gradient)

    def gradient_of_data(self, context: GradientContext) -> None:
        w = context.node.inputs[1]
        if context.needs(0):
            (dx,) = context.emit("linear_backward_data", [context.grad, w], None, "backward_data", of=0)
            context.give(0, dx)

    def product(self, signature: Signature) -> Product:
        x, w = signature.inputs[:2]
        m, (n, k) = _rows(x), w.shape
        bias = "in2" if len(signature.inputs) > 2 else ""
        return Product(1, m, n, k, Matrix("in0", 0, k, 1), Matrix("in1", 0, 1, k), Matrix("out0", 0, n, 1), bias)

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        y = inputs[0] @ inputs[1].T
        return (y + inputs[2] if len(inputs) > 2 else y,)

    def samples(self) -> Sequence[Sample]:
        cases = (((5, 7), (3, 7)), ((33, 40), (48, 40), (48,)), ((2, 3, 9), (65, 9), (65,)), ((1, 64), (100, 64)))
        return tuple(Sample(Attrs(), types) for types in _samples_of(cases))


@register
class LinearBackwardData(ProductOp):
    """dx = dy w. Inputs: dy [..., out], w [out, in]. Output: dx [..., in]."""

    low_precision = EVERY
    name = "linear_backward_data"
    input_counts = (2,)
    output_names = ("dx",)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, w = inputs
        if len(w.shape) != 2 or not dy.shape or dy.shape[-1] != w.shape[0]:
            raise misfit(f"gradient {dy.text()} does not fit weights {w.text()}", "weights are (out, in)")
        return (TensorType(shape=(*dy.shape[:-1], w.shape[1]), dtype=dy.dtype),)

    def product(self, signature: Signature) -> Product:
        dy, w = signature.inputs
        m, (k, n) = _rows(dy), w.shape
        return Product(1, m, n, k, Matrix("in0", 0, k, 1), Matrix("in1", 0, n, 1), Matrix("out0", 0, n, 1))

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0] @ inputs[1],)

    def samples(self) -> Sequence[Sample]:
        cases = (((5, 3), (3, 7)), ((33, 40), (40, 48)), ((2, 3, 65), (65, 9)), ((1, 100), (100, 64)))
        return tuple(Sample(Attrs(), types) for types in _samples_of(cases))


@register
class LinearBackwardWeights(ProductOp):
    """dw[o, i] = sum over rows of dy[., o] x[., i], db[o] = sum over rows of dy[., o].

    Inputs: x [..., in], dy [..., out]. Outputs: dw [out, in], [db [out]]. A slice computes some output features,
    columns of dy, rows of dw, or a tile of dw; those at the left compute db. Or, by `depth`, a partial dw and db of
    some rows, which a second stage adds in the order of the slices: where features are few, tiles all read much.
    """

    low_precision = EVERY
    name = "linear_backward_weights"
    input_counts = (2,)
    attrs_type = LinearGradAttrs
    output_names = ("dw", "db")

    def infer(self, attrs: LinearGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, dy = inputs
        if not x.shape or x.shape[:-1] != dy.shape[:-1]:
            raise misfit(f"gradient {dy.text()} does not fit data {x.text()}", "both have the same rows")
        sums = accumulated(x.dtype)
        dw = TensorType(shape=(dy.shape[-1], x.shape[-1]), dtype=sums)
        return (dw, TensorType(shape=dy.shape[-1:], dtype=sums)) if attrs.bias else (dw,)

    def product(self, signature: Signature) -> Product:
        x, dy = signature.inputs
        m, n = dy.shape[-1], x.shape[-1]
        return Product(1, m, n, _rows(x), Matrix("in1", 0, 1, m), Matrix("in0", 0, n, 1), Matrix("out0", 0, n, 1))

    def slice_dim(self, mode: Mode) -> str:
        return "rows" if mode.dim == "columns" else mode.dim

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        p = self.product(signature)
        found = {("onednn", "columns"): p.m, ("onednn", "tiles"): most_tiles(p.m, p.n)}
        # Partial sums are not to be larger than what is read.
        most = min(p.k // LEAST_DEPTH, p.k * (p.m + p.n) // (p.m * p.n))
        if most > 1:
            found["onednn", "depth"] = most
        return found

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        p = self.product(signature)
        if mode.dim == "depth":
            return p.m >= LEAST_FEATURES * mode.slices
        few = mode.slices > p.m  # columns of dw are not cut otherwise
        return not few and super().redundant(signature, mode)

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if mode.dim == "depth" else super().stage_count(signature, mode, facts)

    def partial_floats(self, signature: Signature) -> int:
        """From one slice's partial dw and db to the next slice's."""
        return align(4 * sum(t.elements for t in signature.outputs)) // 4

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        if mode.dim != "depth":
            return super().scratch(signature, mode, facts)
        partial = ScratchPart("partial", Bytes(4 * self.partial_floats(signature) * mode.slices))
        return (partial, *library_part(mode, facts))

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        if mode.dim == "depth":
            return self._by_depth(signature, mode, stage, index, facts)
        found = super().accesses(signature, mode, stage, index, facts)
        last = stage == self.stage_count(signature, mode, facts) - 1
        _, rows, columns = self.parts(signature, mode, index)
        if len(signature.outputs) < 2 or not last or columns[0] > 0:
            return found
        return (*found, writes("out1", *rows))

    def _by_depth(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        if stage == 1:
            results = (split(t.elements, mode.slices, index) for t in signature.outputs)
            return (reads("partial", 0, mode.slices), *(writes(f"out{i}", *span) for i, span in enumerate(results)))
        p = self.product(signature)
        lo, hi = split(p.k, mode.slices, index)
        operands = reads("in0", lo * p.n, hi * p.n), reads("in1", lo * p.m, hi * p.m)
        return (*operands, writes("partial", index, index + 1), *library_access(index, facts))

    def flops(self, signature: Signature) -> int:
        return super().flops(signature) + (signature.inputs[1].elements if len(signature.outputs) > 1 else 0)

    def reference(self, attrs: LinearGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, dy = (t.reshape(-1, t.shape[-1]) for t in inputs)
        return (dy.T @ x, dy.sum(0)) if attrs.bias else (dy.T @ x,)

    def samples(self) -> Sequence[Sample]:
        cases = (((5, 7), (5, 3)), ((33, 40), (33, 48)), ((2, 3, 9), (2, 3, 65)), ((1, 64), (1, 100)),
                 ((400, 5), (400, 7)), ((330, 9), (330, 12)))  # fmt: skip
        return tuple(Sample(LinearGradAttrs(bias=i % 2 == 1), t) for i, t in enumerate(_samples_of(cases)))


@register
class Matmul(ProductOp):
    """y = op(a) op(b) over the last two dimensions; the leading ones are equal, or one operand is repeated over the
    other's (all its leading dimensions are 1 or missing)."""

    low_precision = EVERY
    name = "matmul"
    input_counts = (2,)
    attrs_type = MatmulAttrs

    def low_inputs(self, attrs: MatmulAttrs) -> Container[int] | None:
        return None if attrs.exact else super().low_inputs(attrs)

    def infer(self, attrs: MatmulAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = inputs
        if len(a.shape) < 2 or len(b.shape) < 2:
            raise misfit(f"matmul needs matrices, not {a.text()} and {b.text()}", "reshape vectors to matrices")
        m, k = a.shape[-2:][::-1] if attrs.transpose_a else a.shape[-2:]
        k2, n = b.shape[-2:][::-1] if attrs.transpose_b else b.shape[-2:]
        leading_a, leading_b = a.shape[:-2], b.shape[:-2]
        if k != k2:
            raise misfit(f"matmul: {a.text()} and {b.text()} share no inner dimension ({k}, {k2})", "transpose one")
        if leading_a != leading_b and prod(leading_a) > 1 and prod(leading_b) > 1:
            raise misfit(
                f"matmul cannot pair the leading dimensions of {a.text()} and {b.text()}",
                "make them equal, or repeat one matrix over all others",
            )
        return (TensorType(shape=(*np.broadcast_shapes(leading_a, leading_b), m, n), dtype=a.dtype),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, MatmulAttrs)
        a, b = context.node.inputs
        dy, ta, tb = context.grad, attrs.transpose_a, attrs.transpose_b
        if context.needs(0):
            left, right, swap = (b, dy, MatmulAttrs(transpose_a=tb, transpose_b=True)) if ta else (
                dy, b, MatmulAttrs(transpose_b=not tb))  # fmt: skip
            self._give(context, 0, left, right, swap)
        if context.needs(1):
            left, right, swap = (dy, a, MatmulAttrs(transpose_a=True, transpose_b=ta)) if tb else (
                a, dy, MatmulAttrs(transpose_a=not ta))  # fmt: skip
            self._give(context, 1, left, right, swap)

    def _give(self, context: GradientContext, index: int, left: str, right: str, attrs: MatmulAttrs) -> None:
        from planner.ops.reduce import sum_to
        from planner.ops.shape import ReshapeAttrs

        assert isinstance(context.attrs, MatmulAttrs)
        attrs = attrs.model_copy(update={"exact": context.attrs.exact})
        target = context.type(context.node.inputs[index])
        repeated = prod(target.shape[:-2]) < prod(context.type(context.node.outputs[0]).shape[:-2])
        if repeated and attrs.transpose_a and not attrs.transpose_b:
            # One product over all rows sums over the batch on the way.
            flat = []
            for value in (left, right):
                shape = context.type(value).shape
                rows = ReshapeAttrs(shape=(prod(shape[:-1]), shape[-1]))
                flat.append(context.emit("reshape", [value], rows, f"backward_{'ab'[index]}_rows", of=index)[0])
            (gradient,) = context.emit("matmul", flat, attrs, f"backward_{'ab'[index]}", of=index)
            if context.type(gradient).shape != target.shape:
                (gradient,) = context.emit("reshape", [gradient], ReshapeAttrs(shape=target.shape), of=index)
        else:
            (gradient,) = context.emit("matmul", [left, right], attrs, f"backward_{'ab'[index]}", of=index)
            gradient = sum_to(context, gradient, target.shape, index)
        context.give(index, gradient)

    def product(self, signature: Signature) -> Product:
        attrs = signature.attrs
        assert isinstance(attrs, MatmulAttrs)
        a, b, y = (*signature.inputs, signature.outputs[0])
        batch, (m, n) = prod(y.shape[:-2]), y.shape[-2:]
        k = a.shape[-2] if attrs.transpose_a else a.shape[-1]

        def matrix(operand: str, type_: TensorType, rows: int, columns: int, transposed: bool) -> Matrix:
            stride = rows * columns if batch > 1 and type_.elements > rows * columns else 0
            return Matrix(operand, stride, *((1, rows) if transposed else (columns, 1)))

        return Product(
            batch,
            m,
            n,
            k,
            matrix("in0", a, m, k, attrs.transpose_a),
            matrix("in1", b, k, n, attrs.transpose_b),
            matrix("out0", y, m, n, False),
        )

    def reference(self, attrs: MatmulAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a = inputs[0].swapaxes(-1, -2) if attrs.transpose_a else inputs[0]
        b = inputs[1].swapaxes(-1, -2) if attrs.transpose_b else inputs[1]
        return (a @ b,)

    def samples(self) -> Sequence[Sample]:
        cases = (
            ((5, 7), (7, 33), False, False),
            ((7, 5), (40, 7), True, True),
            ((3, 5, 4), (3, 4, 6), False, False),
            ((2, 3, 4, 5), (2, 3, 6, 4), True, True),
            ((4, 5, 6), (7, 6), False, True),
            ((1, 5, 6), (3, 5, 7), True, False),
            ((3, 4, 5), (5, 6), False, False),
        )
        return tuple(
            Sample(MatmulAttrs(transpose_a=ta, transpose_b=tb), (TensorType(shape=a), TensorType(shape=b)))
            for a, b, ta, tb in cases
        )
