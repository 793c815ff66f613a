"""Layer normalisation over the last dimensions of every row, and its gradient.

Forward and dx need one stage over rows. The parameters' gradients add a second stage: every slice leaves the sums of
its rows (double) in scratch, then every slice adds some columns in slice order.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

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
from planner.units import Bytes, align


class LayerNormAttrs(Attrs):
    """`dims`: how many trailing dimensions make a row. `scale`, `shift`: whether gamma, beta are inputs."""

    dims: int = 1
    eps: float = 1e-5
    scale: bool = True
    shift: bool = True


class _LayerNorm(Op):
    family = "layer_norm"
    input_layout = Layout.ROW_MAJOR
    attrs_type = LayerNormAttrs

    def rows(self, signature: Signature) -> tuple[int, int]:
        """(rows, columns)."""
        attrs = signature.attrs
        assert isinstance(attrs, LayerNormAttrs)
        shape = signature.inputs[0].shape
        columns = prod(shape[len(shape) - attrs.dims :])
        return signature.inputs[0].elements // columns, columns

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): self.rows(signature)[0]}


@register
class LayerNorm(_LayerNorm):
    """y = gamma (x - mean) inv_std + beta. Inputs: x, [gamma], [beta]; outputs: y, mean, inv_std (one per row)."""

    name = "layer_norm"
    input_counts = (1, 2, 3)
    low_precision = (0,)
    output_names = ("y", "mean", "inv_std")
    saved_outputs = frozenset({"mean", "inv_std"})

    def infer(self, attrs: LayerNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, *parameters = inputs
        if not 1 <= attrs.dims <= len(x.shape):
            raise misfit(f"layer_norm cannot take rows of {attrs.dims} dimensions from {x.text()}", "use fewer")
        row = x.shape[len(x.shape) - attrs.dims :]
        if len(parameters) != attrs.scale + attrs.shift or any(p.shape != row for p in parameters):
            raise misfit(
                f"layer_norm of {x.text()} cannot use parameters {', '.join(p.text() for p in parameters) or 'none'}",
                f"scale and shift have the row's shape {row}",
            )
        stats = TensorType(shape=(x.elements // prod(row),))
        return (x, stats, stats)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, LayerNormAttrs)
        x, *parameters = context.node.inputs
        _, mean, inv_std = context.node.outputs
        inputs = [context.grad, x, mean, inv_std, *parameters[: attrs.scale]]
        for index, gradient in enumerate(context.emit("layer_norm_backward", inputs, attrs)):
            context.give(index, gradient)

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        rows, columns = self.rows(signature)
        lo, hi = split(rows, mode.slices, index)
        return (
            reads("in0", lo * columns, hi * columns),
            *(reads(f"in{i}", 0, columns) for i in range(1, len(signature.inputs))),
            writes("out0", lo * columns, hi * columns),
            writes("out1", lo, hi),
            writes("out2", lo, hi),
        )

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0),)

    def reference(self, attrs: LayerNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, *parameters = inputs
        axes = tuple(range(x.ndim - attrs.dims, x.ndim))
        mean = x.mean(axes, keepdims=True)
        inv_std = 1 / np.sqrt(x.var(axes, keepdims=True) + attrs.eps)
        y = (x - mean) * inv_std
        if attrs.scale:
            y = y * parameters[0]
        if attrs.shift:
            y = y + parameters[-1]
        return (y, mean.reshape(-1), inv_std.reshape(-1))

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], **attrs: Any) -> Sample:
            full = LayerNormAttrs(**attrs)
            row = TensorType(shape=shape[len(shape) - full.dims :])
            return Sample(full, (TensorType(shape=shape), *(row,) * (full.scale + full.shift)))

        return (
            case((33, 40)),
            case((2, 3, 5, 7), dims=2, eps=1e-3),
            case((6, 10), shift=False),
            case((4, 1, 9), scale=False, shift=False),
            case((3, 600), scale=False),
            case((5, 4100)),
        )


@register
class LayerNormBackward(_LayerNorm):
    """dx = inv_std (g - mean(g) - xhat mean(g xhat)) with g = gamma dy; dgamma = sum dy xhat; dbeta = sum dy.

    Inputs: dy, x, mean, inv_std, [gamma]. Outputs: dx, [dgamma], [dbeta]. dx is float32 whatever dy is: it is added to
    the gradient that goes around the layer, from layer to layer, where roundings would add up.
    """

    name = "layer_norm_backward"
    input_counts = (4, 5)
    low_precision = (0, 1)
    leads = (1,)
    output_names = ("dx", "dgamma", "dbeta")

    def infer(self, attrs: LayerNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[1]
        row = TensorType(shape=x.shape[len(x.shape) - attrs.dims :])
        stats = TensorType(shape=(x.elements // row.elements,))
        expected = (x, x, stats, stats, *(row,) * attrs.scale)
        if not 1 <= attrs.dims <= len(x.shape) or [t.shape for t in inputs] != [t.shape for t in expected]:
            raise misfit(f"gradient {inputs[0].text()} does not fit {x.text()}", "use what the forward node saved")
        dx = x.model_copy(update={"dtype": DType.FLOAT32 if x.dtype is DType.BFLOAT16 else x.dtype})
        return (dx, *(row,) * (attrs.scale + attrs.shift))

    def flops(self, signature: Signature) -> int:
        return 14 * signature.inputs[0].elements

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if len(signature.outputs) > 1 else 1

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        if len(signature.outputs) == 1:
            return ()
        columns = self.rows(signature)[1]
        return (ScratchPart("partial", Bytes(mode.slices * align(2 * columns * 8))),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        rows, columns = self.rows(signature)
        results = len(signature.outputs)
        if stage == 1:
            own = split(columns, mode.slices, index)
            return (reads("partial", 0, mode.slices), *(writes(f"out{i}", *own) for i in range(1, results)))
        lo, hi = split(rows, mode.slices, index)
        found = [
            reads("in0", lo * columns, hi * columns),
            reads("in1", lo * columns, hi * columns),
            reads("in2", lo, hi),
            reads("in3", lo, hi),
            writes("out0", lo * columns, hi * columns),
        ]
        if len(signature.inputs) > 4:
            found.append(reads("in4", 0, columns))
        return (*found, *((writes("partial", index, index + 1),) if results > 1 else ()))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0),) if signature.inputs[0].dtype is signature.outputs[0].dtype else ()

    def reference(self, attrs: LayerNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x, mean, inv_std, *gamma = inputs
        axes = tuple(range(x.ndim - attrs.dims, x.ndim))
        shape = (*x.shape[: x.ndim - attrs.dims], *(1,) * attrs.dims)
        normal = (x - mean.reshape(shape)) * inv_std.reshape(shape)
        g = dy * gamma[0] if attrs.scale else dy
        centred = g - g.mean(axes, keepdims=True) - normal * (g * normal).mean(axes, keepdims=True)
        outer = tuple(range(x.ndim - attrs.dims))
        dgamma = ((dy * normal).sum(outer),) if attrs.scale else ()
        dbeta = (dy.sum(outer),) if attrs.shift else ()
        return (centred * inv_std.reshape(shape), *dgamma, *dbeta)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        attrs = sample.attrs
        assert isinstance(attrs, LayerNormAttrs)
        dy, x, _, _, *gamma = super().draw(sample, rng)
        bare = attrs.model_copy(update={"scale": False, "shift": False})
        _, mean, inv_std = LayerNorm().reference(bare, (x,))
        return (dy, x, mean, inv_std, *gamma)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in LayerNorm().samples():
            attrs, (x, *parameters) = s.attrs, s.inputs
            assert isinstance(attrs, LayerNormAttrs)
            _, mean, inv_std = LayerNorm().infer(attrs, s.inputs)
            found.append(Sample(attrs, (x, x, mean, inv_std, *parameters[: attrs.scale])))
        return tuple(found)
