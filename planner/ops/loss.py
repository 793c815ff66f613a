"""Losses: one number from many items, and the gradient of that number.

Two stages: every slice leaves the loss and the weight of its items in scratch (double), then slice 0 adds them in
slice order. `scale` (1 / counted items for the mean, 1 for the sum) is saved for the backward pass, which also reads
the gradient of the loss itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

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
    common_layout,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.ops.softmax import log_softmax
from planner.units import Bytes

PARTIAL_BYTES = 64
"""What a slice leaves: loss, items, first bad label; a cache line (loss_scratch_bytes of runtime/losses.hpp)."""


class LossAttrs(Attrs):
    reduction: Literal["mean", "sum"] = "mean"


class ClassLossAttrs(LossAttrs):
    """Rows with label `ignore_index` do not count. `label_smoothing` spreads that share over all classes."""

    ignore_index: int = -100
    label_smoothing: float = 0.0


class NllGradAttrs(ClassLossAttrs):
    """`classes`: the columns of the result."""

    classes: int


class _Loss(Op):
    """Outputs: loss (), [log_probs], scale ()."""

    family = "loss"
    output_names: ClassVar[tuple[str, ...]] = ("loss", "scale")
    saved_outputs = frozenset({"log_probs", "scale"})
    stages = 2

    def unit(self, signature: Signature) -> int:
        """Elements of the first input per item that slices divide."""
        return 1

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        raise NotImplementedError

    def flops(self, signature: Signature) -> int:
        return 5 * signature.inputs[0].elements

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (ScratchPart("partial", Bytes(PARTIAL_BYTES * mode.slices)),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        last = len(signature.outputs) - 1
        if stage == 1:
            results = (writes("out0", 0, 1), writes(f"out{last}", 0, 1))
            return (reads("partial", 0, mode.slices), *results) if index == 0 else ()
        unit = self.unit(signature)
        lo, hi = split(signature.inputs[0].elements // unit, mode.slices, index)
        second = unit if signature.inputs[1].elements == signature.inputs[0].elements else 1
        found = [reads("in0", lo * unit, hi * unit), reads("in1", lo * second, hi * second)]
        if last == 2:
            found.append(writes("out1", lo * unit, hi * unit))
        return (*found, writes("partial", index, index + 1))


class _LossBackward(Op):
    """Inputs: dloss (), scale (), then what the gradient is made of. Output: dx."""

    family = "loss"
    output_names = ("dx",)

    def flops(self, signature: Signature) -> int:
        return 3 * signature.outputs[0].elements

    def unit(self, signature: Signature) -> int:
        return 1

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        dx, unit = signature.outputs[0], self.unit(signature)
        lo, hi = split(dx.elements // unit, mode.slices, index)
        found = [reads("in0", 0, 1), reads("in1", 0, 1)]
        for position, type_ in enumerate(signature.inputs[2:], start=2):
            own = unit if type_.elements == dx.elements else 1
            found.append(reads(f"in{position}", lo * own, hi * own))
        return (*found, writes("out0", lo * unit, hi * unit))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        dx = signature.outputs[0]
        return tuple((0, i) for i, t in enumerate(signature.inputs) if i > 1 and t == dx)


_SCALAR = TensorType(shape=())


# -- labels ----------------------------------------------------------------------------------------------------
class _ClassLoss(_Loss):
    """Inputs: rows [items, classes], int64 labels [items]. Slices cut the rows."""

    attrs_type = ClassLossAttrs
    input_layout = Layout.ROW_MAJOR

    def infer(self, attrs: ClassLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, labels = inputs
        if len(x.shape) != 2 or labels.shape != x.shape[:1] or labels.dtype is not DType.INT64:
            raise misfit(
                f"{self.name} cannot compare {x.text()} with labels {labels.text()}",
                "use scores [rows, classes] and int64 labels [rows]",
            )
        if not 0 <= attrs.label_smoothing <= 1:
            raise misfit(f"label smoothing {attrs.label_smoothing} is not a share", "use a number from 0 to 1")
        return (_SCALAR, x, _SCALAR) if len(self.output_names) > 2 else (_SCALAR, _SCALAR)

    def unit(self, signature: Signature) -> int:
        return signature.inputs[0].shape[1]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): signature.inputs[0].shape[0]}

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, ClassLossAttrs)
        rows, classes = sample.inputs[0].shape
        return (rng.standard_normal((rows, classes)) * 3, _draw_labels(sample.attrs, rows, classes, rng))

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, classes: int, **attrs: Any) -> Sample:
            types = (TensorType(shape=(rows, classes)), TensorType(shape=(rows,), dtype=DType.INT64))
            return Sample(ClassLossAttrs(**attrs), types)

        return (
            case(7, 10),
            case(33, 5, reduction="sum", label_smoothing=0.1),
            case(6, 1000, ignore_index=3),
            case(9, 4, ignore_index=1, label_smoothing=0.2),
        )


class _ClassLossBackward(_LossBackward):
    attrs_type: ClassVar[type[Attrs]] = ClassLossAttrs

    def unit(self, signature: Signature) -> int:
        return signature.outputs[0].shape[1]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): signature.outputs[0].shape[0]}


@register
class NllLoss(_ClassLoss):
    """loss = -sum over rows of log_probs[row, label], over the counted rows for the mean. Outputs: loss, scale."""

    name = "nll_loss"

    def gradient(self, context: GradientContext) -> None:
        log_probs, labels = context.node.inputs
        attrs = NllGradAttrs(**context.attrs.model_dump(), classes=context.type(log_probs).shape[1])
        inputs = [context.grad, context.node.outputs[1], labels]
        context.give(0, context.emit("nll_loss_backward", inputs, attrs)[0])

    def reference(self, attrs: ClassLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        log_probs, labels = inputs
        targets = _targets(attrs, labels, log_probs.shape[1])
        scale = 1 / _counted(attrs, labels, log_probs.shape[1]).sum() if attrs.reduction == "mean" else 1.0
        return (np.asarray(-(targets * log_probs).sum() * scale), np.asarray(scale, log_probs.dtype))


@register
class NllLossBackward(_ClassLossBackward):
    """dx[row, label] = -dloss scale. Inputs: dloss, scale, labels."""

    name = "nll_loss_backward"
    attrs_type = NllGradAttrs

    def infer(self, attrs: NllGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (TensorType(shape=(*inputs[2].shape, attrs.classes)),)

    def reference(self, attrs: NllGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, labels = inputs
        return (-dloss * scale * _targets(attrs, labels, attrs.classes),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, NllGradAttrs)
        labels = _draw_labels(sample.attrs, sample.inputs[2].shape[0], sample.attrs.classes, rng)
        return (rng.standard_normal(()), np.abs(rng.standard_normal(())), labels)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in NllLoss().samples():
            attrs = NllGradAttrs(**s.attrs.model_dump(), classes=s.inputs[0].shape[1])
            found.append(Sample(attrs, (_SCALAR, _SCALAR, s.inputs[1])))
        return tuple(found)


@register
class CrossEntropy(_ClassLoss):
    """loss = nll(log_softmax(logits)). Outputs: loss, log_probs, scale."""

    name = "cross_entropy"
    output_names = ("loss", "log_probs", "scale")

    def gradient(self, context: GradientContext) -> None:
        _, log_probs, scale = context.node.outputs
        inputs = [context.grad, scale, log_probs, context.node.inputs[1]]
        context.give(0, context.emit("cross_entropy_backward", inputs, context.attrs)[0])

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((1, 0),)

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def reference(self, attrs: ClassLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        log_probs = log_softmax(inputs[0])
        loss, scale = NllLoss().reference(attrs, (log_probs, inputs[1]))
        return (loss, log_probs, scale)


@register
class CrossEntropyBackward(_ClassLossBackward):
    """dx = (exp(log_probs) - target) dloss scale on counted rows. Inputs: dloss, scale, log_probs, labels."""

    name = "cross_entropy_backward"

    def infer(self, attrs: ClassLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[2],)

    def flops(self, signature: Signature) -> int:
        return 4 * signature.outputs[0].elements

    def reference(self, attrs: ClassLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, log_probs, labels = inputs
        classes = log_probs.shape[1]
        counted = _counted(attrs, labels, classes)[:, None]
        return ((np.exp(log_probs) * counted - _targets(attrs, labels, classes)) * dloss * scale,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, ClassLossAttrs)
        rows, classes = sample.inputs[2].shape
        labels = _draw_labels(sample.attrs, rows, classes, rng)
        log_probs = log_softmax(rng.standard_normal((rows, classes)) * 3)
        return (rng.standard_normal(()), np.abs(rng.standard_normal(())), log_probs, labels)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, (_SCALAR, _SCALAR, *s.inputs)) for s in CrossEntropy().samples())


def _counted(attrs: ClassLossAttrs, labels: Array, classes: int) -> Array:
    """Which rows count. A label out of range does not: the executor reports it after the step."""
    counted: Array = (labels != attrs.ignore_index) & (labels >= 0) & (labels < classes)
    return counted


def _targets(attrs: ClassLossAttrs, labels: Array, classes: int) -> Array:
    """Smoothed one-hot rows, zero where the label does not count."""
    one_hot = (np.arange(classes) == labels[:, None]).astype(np.float64)
    smoothed = one_hot * (1 - attrs.label_smoothing) + attrs.label_smoothing / classes
    result: Array = smoothed * _counted(attrs, labels, classes)[:, None]
    return result


def _draw_labels(attrs: ClassLossAttrs, rows: int, classes: int, rng: np.random.Generator) -> Array:
    """At least one row counts, and one is ignored where `ignore_index` is a class."""
    labels = rng.integers(0, classes, rows)
    labels[0] = (attrs.ignore_index + 1) % classes
    if attrs.ignore_index >= 0:
        labels[-1] = attrs.ignore_index
    return labels


# -- real targets ----------------------------------------------------------------------------------------------
class _PairLoss(_Loss):
    """Inputs: x, target of the same shape. Outputs: loss, scale."""

    attrs_type = LossAttrs

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: LossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0] != inputs[1]:
            raise misfit(f"{self.name} cannot compare {inputs[0].text()} with {inputs[1].text()}", "make them alike")
        return (_SCALAR, _SCALAR)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.inputs[0].elements // 16)}

    def _scale(self, attrs: LossAttrs, x: Array) -> Array:
        return np.asarray(1 / x.size if attrs.reduction == "mean" else 1.0, x.dtype)

    def samples(self) -> Sequence[Sample]:
        types = (
            TensorType(shape=(6, 10)),
            TensorType(shape=(33,)),
            TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST),
        )
        reductions: tuple[Literal["mean", "sum"], ...] = ("mean", "sum", "mean")
        return tuple(Sample(LossAttrs(reduction=r), (t, t)) for r, t in zip(reductions, types, strict=True))


class _PairLossBackward(_LossBackward):
    """Inputs: dloss, scale, x, target."""

    attrs_type = LossAttrs

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: LossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[2],)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.outputs[0].elements // 16)}

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, (_SCALAR, _SCALAR, *s.inputs)) for s in MseLoss().samples())


@register
class MseLoss(_PairLoss):
    """loss = sum (x - target)^2, over the elements for the mean."""

    name = "mse_loss"

    def gradient(self, context: GradientContext) -> None:
        inputs = [context.grad, context.node.outputs[1], *context.node.inputs]
        (dx,) = context.emit("mse_loss_backward", inputs, context.attrs)
        context.give(0, dx)
        if context.needs(1):
            context.give(1, context.emit("neg", [dx], of=1)[0])

    def reference(self, attrs: LossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        scale = self._scale(attrs, inputs[0])
        return (np.asarray(((inputs[0] - inputs[1]) ** 2).sum() * scale), scale)


@register
class MseLossBackward(_PairLossBackward):
    """dx = 2 (x - target) dloss scale."""

    name = "mse_loss_backward"

    def reference(self, attrs: LossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, x, target = inputs
        return (2 * (x - target) * dloss * scale,)


@register
class BceWithLogits(_PairLoss):
    """loss = sum of max(x, 0) - x target + log(1 + exp(-|x|)); the targets are constants."""

    name = "bce_with_logits"

    def gradient(self, context: GradientContext) -> None:
        inputs = [context.grad, context.node.outputs[1], *context.node.inputs]
        context.give(0, context.emit("bce_with_logits_backward", inputs, context.attrs)[0])
        if context.needs(1):
            # d loss / d target = -x
            (product,) = context.emit("mul", [context.node.inputs[0], context.grad], of=1)
            (scaled,) = context.emit("mul", [product, context.node.outputs[1]], of=1)
            context.give(1, context.emit("neg", [scaled], of=1)[0])

    def reference(self, attrs: LossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, target = inputs
        each = np.maximum(x, 0) - x * target + np.log1p(np.exp(-np.abs(x)))
        scale = self._scale(attrs, x)
        return (np.asarray(each.sum() * scale), scale)


@register
class BceWithLogitsBackward(_PairLossBackward):
    """dx = (sigmoid(x) - target) dloss scale."""

    name = "bce_with_logits_backward"

    def reference(self, attrs: LossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, x, target = inputs
        return ((1 / (1 + np.exp(-x)) - target) * dloss * scale,)
