"""Batch normalisation in training and evaluation mode, fused with relu and a residual addition where a graph has
them (y = relu(bn(x) + r)), or with relu6, silu or hard-swish, and its gradient. Statistics are per channel over N, H
and W.

Two stages: every slice sums its own rows (shifted by the first row, in double), all slices meet, then every slice
adds all partial sums in slice order and normalises its rows. The order of additions is therefore fixed by the plan.
"""

from collections.abc import Container, Mapping, Sequence
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, Node, TensorType
from planner.ops.base import (
    Access,
    Again,
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

Activation = Literal["none", "relu", "relu6", "silu", "hard_swish"]
"""What a normalisation applies to its result."""


class BatchNormAttrs(Attrs):
    """`momentum` weighs the new batch in the running statistics (PyTorch's meaning)."""

    eps: float = 1e-5
    momentum: float = 0.1
    activation: Activation = "none"
    residual: bool = False


class BatchNormGradAttrs(BatchNormAttrs):
    """`joined`: the gradient comes as two summands, as where a residual block's result goes two ways."""

    joined: bool = False


def _rows(type_: TensorType) -> tuple[int, int]:
    """(positions, channels) of a channels-last or (N, C) tensor."""
    channels = type_.shape[1]
    return type_.elements // channels, channels


class _BatchNorm(Op):
    family = "batch_norm"
    input_layout = Layout.CHANNELS_LAST
    attrs_type = BatchNormAttrs
    data: ClassVar[int] = 0
    """Position of x."""

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): _rows(signature.inputs[0])[0]}

    def check(self, attrs: BatchNormAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        x = inputs[self.data]
        channels = x.shape[1:2]
        parameters = [t for i, t in enumerate(inputs) if i in self.parameters(attrs)]
        images = [t for i, t in enumerate(inputs) if i not in self.parameters(attrs)]
        if len(x.shape) not in (2, 4) or any(t.shape != channels for t in (*parameters, *updates)):
            raise misfit(f"{self.name} cannot normalise {x.text()}", "use (N, C) or (N, C, H, W) with C scales")
        if len(inputs) != self.operands(attrs) or any(t.shape != x.shape for t in images):
            others = ", ".join(t.text() for t in images)
            raise misfit(f"{self.name} cannot combine {others}", "data, gradient and residual have one shape")

    def operands(self, attrs: BatchNormAttrs) -> int:
        """How many inputs the op takes."""
        raise NotImplementedError

    def parameters(self, attrs: BatchNormAttrs) -> tuple[int, ...]:
        """Positions of the inputs that hold one number per channel."""
        raise NotImplementedError

    def _own(self, operand: str, write: bool, signature: Signature, mode: Mode, index: int) -> Access:
        rows, channels = _rows(signature.inputs[0])
        lo, hi = split(rows, mode.slices, index)
        return Access(operand, write, (lo * channels, hi * channels))


@register
class BatchNorm(_BatchNorm):
    """Training mode. Inputs: x, gamma, beta, [residual]; updates: running_mean, running_var (unbiased), both or none;
    outputs: y, mean, inv_std."""

    low_precision = (0, 3)
    leads = (0,)
    name = "batch_norm"
    input_counts = (3, 4)
    update_counts = (0, 2)
    output_names = ("y", "mean", "inv_std")
    saved_outputs = frozenset({"mean", "inv_std"})
    stages = 2

    def infer(self, attrs: BatchNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        stats = TensorType(shape=x.shape[1:2])
        return (x, stats, stats)

    def operands(self, attrs: BatchNormAttrs) -> int:
        return 4 if attrs.residual else 3

    def parameters(self, attrs: BatchNormAttrs) -> tuple[int, ...]:
        return (1, 2)

    def evaluation(self, node: Node, inputs: list[str]) -> tuple[str, Attrs, list[str]]:
        if not node.updates:
            return (node.op, node.attrs, inputs)  # without running statistics, evaluation uses the batch's
        return ("batch_norm_inference", node.attrs, [*inputs, *node.updates])

    def again(self, node: Node) -> Again:
        """From the saved statistics: the same affine map of every row, in one pass, and no running statistics."""
        return Again("batch_norm_apply", node.attrs, (*node.inputs, *node.outputs[1:3]), 1)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, BatchNormAttrs)
        x, gamma, beta, *_ = context.node.inputs
        y, mean, inv_std = context.node.outputs
        masked = attrs.residual and attrs.activation == "relu"
        # The masked gradient is written once and read from there: adding up while masking saves two passes.
        dy, *more = context.summands() if masked else (context.grad,)
        inputs = [dy, x, gamma, beta, mean, inv_std, *((y,) if masked else ()), *more]
        grad_attrs = BatchNormGradAttrs(**attrs.model_dump(), joined=bool(more))
        gradients = context.emit("batch_norm_backward", inputs, grad_attrs)
        for index, gradient in zip((0, 1, 2), gradients, strict=False):
            context.give(index, gradient)
        if attrs.residual:
            context.give(3, gradients[3] if masked else dy)

    def flops(self, signature: Signature) -> int:
        return 7 * signature.inputs[0].elements

    def bytes_moved(self, signature: Signature) -> Bytes:
        x = signature.inputs[0].bytes
        return Bytes(x * (4 if len(signature.inputs) > 3 else 3))

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        channels = signature.inputs[0].shape[1]
        return (
            ScratchPart("partial", Bytes(mode.slices * align(2 * channels * 8))),
            ScratchPart("pivot", Bytes(channels * 4)),
        )

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        channels = signature.inputs[0].shape[1]
        x = self._own("in0", False, signature, mode, index)
        # The shift that keeps the sums accurate is the very first row, read by every slice.
        if stage == 0:
            pivot = (writes("pivot", 0, 1),) if index == 0 else ()
            return (x, reads("in0", 0, channels), writes("partial", index, index + 1), *pivot)
        found = [
            x,
            reads("partial", 0, mode.slices),
            reads("pivot", 0, 1),
            reads("in1", 0, channels),
            reads("in2", 0, channels),
            self._own("out0", True, signature, mode, index),
        ]
        if len(signature.inputs) > 3:
            found.append(self._own("in3", False, signature, mode, index))
        if index == 0:
            found += [writes("out1", 0, channels), writes("out2", 0, channels)]
            found += [writes(f"up{i}", 0, channels) for i in range(len(signature.updates))]
        return tuple(found)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 3),) if len(signature.inputs) > 3 else ()

    def reference(self, attrs: BatchNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        n_in = 4 if attrs.residual else 3
        x, gamma, beta = inputs[:3]
        axes = (0, *range(2, x.ndim))
        shape = (1, -1) + (1,) * (x.ndim - 2)
        count = prod(x.shape[a] for a in axes)
        mean, var = x.mean(axes), x.var(axes)
        inv_std = 1 / np.sqrt(var + attrs.eps)
        y = (x - mean.reshape(shape)) * (inv_std * gamma).reshape(shape) + beta.reshape(shape)
        y = _finish(attrs, y, inputs)
        updated = tuple(
            old + attrs.momentum * (new - old)
            for old, new in zip(inputs[n_in:], (mean, var * count / max(count - 1, 1)), strict=False)
        )
        return (y, mean, inv_std, *updated)

    def samples(self) -> Sequence[Sample]:
        def case(shape: tuple[int, ...], **attrs: Any) -> Sample:
            x = TensorType(shape=shape, layout=Layout.CHANNELS_LAST if len(shape) == 4 else Layout.ROW_MAJOR)
            c = TensorType(shape=shape[1:2])
            residual = (x,) if attrs.get("residual") else ()
            return Sample(BatchNormAttrs(**attrs), (x, c, c, *residual))

        return (
            case((4, 16, 7, 5)),
            case((3, 10, 6, 6), activation="relu"),
            case((3, 10, 6, 6), activation="relu6"),
            case((5, 21, 7, 3), activation="silu"),
            case((4, 19, 6, 5), activation="hard_swish"),
            case((2, 33, 5, 4), activation="relu", residual=True),
            case((5, 3, 4, 4), residual=True),
            case((12, 20)),
        )


def _finish(attrs: BatchNormAttrs, y: Array, inputs: Sequence[Array]) -> Array:
    """With the residual, activated."""
    return activate(attrs.activation, y + inputs[3] if attrs.residual else y)


def activate(activation: Activation, y: Array) -> Array:
    if activation == "silu":
        return np.asarray(y / (1 + np.exp(-y)))
    if activation == "hard_swish":
        return np.asarray(y * np.clip(y + 3, 0, 6) / 6)
    y = np.maximum(y, 0) if activation != "none" else y
    return np.minimum(y, 6) if activation == "relu6" else y


def behind(activation: Activation, dy: Array, y: Array) -> Array:
    """The gradient of what went into the activation, y, or of relu of its result."""
    if activation == "none":
        return dy
    if activation == "silu":
        share = 1 / (1 + np.exp(-y))
        return dy * share * (1 + y * (1 - share))
    if activation == "hard_swish":
        return dy * np.where(y < 3, np.where(y > -3, y / 3 + 0.5, 0), 1)
    dy = dy * (y > 0)
    return dy * (y < 6) if activation == "relu6" else dy


@register
class BatchNormInference(_BatchNorm):
    """Evaluation mode. Inputs: x, gamma, beta, [residual], running_mean, running_var; output: y."""

    name = "batch_norm_inference"
    leads = (0,)
    input_counts = (5, 6)

    def operands(self, attrs: BatchNormAttrs) -> int:
        return 6 if attrs.residual else 5

    def parameters(self, attrs: BatchNormAttrs) -> tuple[int, ...]:
        return (1, 2, 4, 5) if attrs.residual else (1, 2, 3, 4)

    def low_inputs(self, attrs: BatchNormAttrs) -> Container[int]:
        return (0, 3) if attrs.residual else (0,)  # statistics take the residual's place

    def infer(self, attrs: BatchNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        attrs = signature.attrs
        assert isinstance(attrs, BatchNormAttrs)
        found = [
            self._own("in0", False, signature, mode, index),
            self._own("out0", True, signature, mode, index),
        ]
        for position, type_ in enumerate(signature.inputs[1:], start=1):
            if attrs.residual and position == 3:
                found.append(self._own("in3", False, signature, mode, index))
            else:
                found.append(reads(f"in{position}", 0, type_.elements))
        return tuple(found)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 0), (0, 3)) if len(signature.inputs) > 5 else ((0, 0),)

    def reference(self, attrs: BatchNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, gamma, beta = inputs[:3]
        mean, var = inputs[-2:]
        shape = (1, -1) + (1,) * (x.ndim - 2)
        scale = gamma / np.sqrt(var + attrs.eps)
        y = (x - mean.reshape(shape)) * scale.reshape(shape) + beta.reshape(shape)
        return (_finish(attrs, y, inputs),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        drawn = super().draw(sample, rng)
        return (*drawn[:-1], np.abs(drawn[-1]) + 0.1)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, (*s.inputs, s.inputs[1], s.inputs[1])) for s in BatchNorm().samples())


@register
class BatchNormApply(BatchNormInference):
    """Training mode with known statistics. Inputs: x, gamma, beta, [residual], mean, inv_std; output: y. Makes the bits
    of the `batch_norm` whose statistics these are."""

    name = "batch_norm_apply"

    def reference(self, attrs: BatchNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, gamma, beta = inputs[:3]
        mean, inv_std = inputs[-2:]
        shape = (1, -1) + (1,) * (x.ndim - 2)
        y = (x - mean.reshape(shape)) * (inv_std * gamma).reshape(shape) + beta.reshape(shape)
        return (_finish(attrs, y, inputs),)


@register
class BatchNormBackward(_BatchNorm):
    """Inputs: dy, x, gamma, beta, mean, inv_std, [y when relu follows a residual addition, [dy's second summand]].
    Outputs: dx, dgamma, dbeta, [dresidual likewise]. Without a residual what went into the activation comes from x."""

    low_precision = (0, 1, 6, 7)
    leads = (1,)
    name = "batch_norm_backward"
    attrs_type = BatchNormGradAttrs
    input_counts = (6, 7, 8)
    data = 1
    output_names = ("dx", "dgamma", "dbeta", "dresidual")
    stages = 2

    def operands(self, attrs: BatchNormAttrs) -> int:
        assert isinstance(attrs, BatchNormGradAttrs)
        masked = attrs.residual and attrs.activation == "relu"
        if attrs.joined and not masked:
            raise misfit("batch_norm_backward adds up gradients only where it masks them", "add them before")
        return 6 + masked + attrs.joined

    def parameters(self, attrs: BatchNormAttrs) -> tuple[int, ...]:
        return (2, 3, 4, 5)

    def infer(self, attrs: BatchNormAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, c = inputs[1], inputs[2]
        return (x, c, c, x) if attrs.residual and attrs.activation == "relu" else (x, c, c)

    def flops(self, signature: Signature) -> int:
        return 11 * signature.inputs[1].elements

    def bytes_moved(self, signature: Signature) -> Bytes:
        # Read: x and dy twice, y, a second summand; written: dx and dresidual.
        return Bytes(signature.inputs[1].bytes * (len(signature.inputs) if len(signature.outputs) > 3 else 5))

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        channels = signature.inputs[1].shape[1]
        return (ScratchPart("partial", Bytes(mode.slices * align(2 * channels * 8))),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        channels = signature.inputs[1].shape[1]
        masked = len(signature.outputs) > 3
        parameters = tuple(reads(f"in{i}", 0, channels) for i in (2, 3, 4, 5))
        x = self._own("in1", False, signature, mode, index)
        if stage == 0:
            found = [self._own("in0", False, signature, mode, index), x, *parameters]
            found.append(writes("partial", index, index + 1))
            if masked:
                found += [self._own(f"in{i}", False, signature, mode, index) for i in range(6, len(signature.inputs))]
                found.append(self._own("out3", True, signature, mode, index))
            return tuple(found)
        source = self._own("out3" if masked else "in0", False, signature, mode, index)
        found = [source, x, *parameters, reads("partial", 0, mode.slices)]
        found.append(self._own("out0", True, signature, mode, index))
        if index == 0:
            found += [writes("out1", 0, channels), writes("out2", 0, channels)]
        return tuple(found)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        # dx over dy, or, where the residual's gradient is wanted too, that over dy and dx over dy's second summand.
        if len(signature.outputs) > 3:
            return ((3, 0), (0, 7)) if len(signature.inputs) > 7 else ((3, 0),)
        return ((0, 0),)

    def reference(self, attrs: BatchNormAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x, gamma, beta, mean, inv_std = inputs[:6]
        assert isinstance(attrs, BatchNormGradAttrs)
        dy = dy + inputs[7] if attrs.joined else dy
        axes = (0, *range(2, x.ndim))
        shape = (1, -1) + (1,) * (x.ndim - 2)
        count = prod(x.shape[a] for a in axes)
        normal = (x - mean.reshape(shape)) * inv_std.reshape(shape)
        if attrs.activation != "none":
            y = inputs[6] if attrs.residual else normal * gamma.reshape(shape) + beta.reshape(shape)
            dy = behind(attrs.activation, dy, y)
        dbeta, dgamma = dy.sum(axes), (dy * normal).sum(axes)
        centred = dy - (dbeta / count).reshape(shape) - normal * (dgamma / count).reshape(shape)
        dx = centred * (gamma * inv_std).reshape(shape)
        return (dx, dgamma, dbeta, dy) if attrs.residual and attrs.activation == "relu" else (dx, dgamma, dbeta)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        attrs = sample.attrs
        assert isinstance(attrs, BatchNormGradAttrs)
        dy, x, gamma, beta, *_ = super().draw(sample, rng)
        residual = (rng.standard_normal(x.shape),) if attrs.residual else ()
        y, mean, inv_std = BatchNorm().reference(attrs, (x, gamma, beta, *residual))[:3]
        masked = (y,) if attrs.residual and attrs.activation == "relu" else ()
        more = (rng.standard_normal(x.shape),) if attrs.joined else ()
        return (dy, x, gamma, beta, mean, inv_std, *masked, *more)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in BatchNorm().samples():
            attrs, (x, c, *_) = s.attrs, s.inputs
            assert isinstance(attrs, BatchNormAttrs)
            for joined in (False, True)[: 1 + (attrs.residual and attrs.activation == "relu")]:
                masked = (x,) * (1 + joined) if attrs.residual and attrs.activation == "relu" else ()
                grad_attrs = BatchNormGradAttrs(**attrs.model_dump(), joined=joined)
                found.append(Sample(grad_attrs, (x, x, c, c, c, c, *masked)))
        return tuple(found)
