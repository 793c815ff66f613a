"""Losses of class scores against integer labels; rows are sliced. See loss.py for stages and scratch."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import (
    Array,
    Sample,
    Signature,
    misfit,
    register,
)
from planner.ops.loss import SCALAR, ClassLossAttrs, LabelAttrs, Loss, LossBackward
from planner.ops.softmax import log_softmax


class NllGradAttrs(ClassLossAttrs):
    """`classes`: the columns of the result."""

    classes: int


class _ClassLoss(Loss):
    """Inputs: rows [items, classes], int64 labels [items]. Slices cut the rows."""

    attrs_type = ClassLossAttrs
    input_layout = Layout.ROW_MAJOR
    integers: ClassVar[Mapping[int, DType]] = {1: DType.INT64}

    def infer(self, attrs: ClassLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, labels = inputs
        if len(x.shape) != 2 or labels.shape != x.shape[:1]:
            raise misfit(
                f"{self.name} cannot compare {x.text()} with labels {labels.text()}",
                "use scores [rows, classes] and int64 labels [rows]",
            )
        require_share(attrs)
        return (SCALAR, *self.saved_of_rows(x.shape[0]), SCALAR)

    def saved_of_rows(self, rows: int) -> tuple[TensorType, ...]:
        """What is kept of every row for the gradient."""
        return ()

    def unit(self, signature: Signature) -> int:
        return signature.inputs[0].shape[1]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): signature.inputs[0].shape[0]}

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, LabelAttrs)
        rows, classes = sample.inputs[0].shape
        return (rng.standard_normal((rows, classes)) * 3, draw_labels(sample.attrs, rows, classes, rng))

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, classes: int, **attrs: Any) -> Sample:
            types = (TensorType(shape=(rows, classes)), TensorType(shape=(rows,), dtype=DType.INT64))
            return Sample(ClassLossAttrs(**attrs), types)

        return (
            case(7, 10),
            case(33, 5, reduction="sum", label_smoothing=0.1),
            case(6, 1000, ignore_index=3),
            case(5, 1300, label_smoothing=0.1),
            case(9, 4, ignore_index=1, label_smoothing=0.2),
        )


class _ClassLossBackward(LossBackward):
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
        wanted = targets(attrs, labels, log_probs.shape[1])
        scale = 1 / counted(attrs, labels, log_probs.shape[1]).sum() if attrs.reduction == "mean" else 1.0
        told = wanted != 0  # elsewhere there may be minus infinity
        total = (wanted[told] * log_probs[told]).sum()
        return (np.asarray(-total * scale), np.asarray(scale, log_probs.dtype))


@register
class NllLossBackward(_ClassLossBackward):
    """dx[row, label] = -dloss scale. Inputs: dloss, scale, labels."""

    name = "nll_loss_backward"
    input_counts = (3,)
    integers: ClassVar[Mapping[int, DType]] = {2: DType.INT64}
    attrs_type = NllGradAttrs

    def infer(self, attrs: NllGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs[2].shape) != 1:
            raise misfit(f"{self.name} has labels {inputs[2].text()}", "use labels [rows]")
        return (TensorType(shape=(*inputs[2].shape, attrs.classes)),)

    def reference(self, attrs: NllGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, labels = inputs
        rows = counted(attrs, labels, attrs.classes)[:, None]
        return (np.where(rows, -dloss * scale * targets(attrs, labels, attrs.classes), 0.0),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, NllGradAttrs)
        labels = draw_labels(sample.attrs, sample.inputs[2].shape[0], sample.attrs.classes, rng)
        return (rng.standard_normal(()), np.abs(rng.standard_normal(())), labels)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in NllLoss().samples():
            attrs = NllGradAttrs(**s.attrs.model_dump(), classes=s.inputs[0].shape[1])
            found.append(Sample(attrs, (SCALAR, SCALAR, s.inputs[1])))
        return tuple(found)


@register
class CrossEntropy(_ClassLoss):
    """loss = nll(log_softmax(logits)). Outputs: loss; of every row the largest logit, and the logarithm of the sum of
    exponentials of what each logit differs from it; scale."""

    name = "cross_entropy"
    output_names = ("loss", "largest", "log_sum", "scale")
    low_precision = (0,)

    def saved_of_rows(self, rows: int) -> tuple[TensorType, ...]:
        return (TensorType(shape=(rows,)),) * 2

    def gradient(self, context: GradientContext) -> None:
        logits, labels = context.node.inputs
        _, largest, log_sum, scale = context.node.outputs
        inputs = [context.grad, scale, logits, largest, log_sum, labels]
        context.give(0, context.emit("cross_entropy_backward", inputs, context.attrs)[0])

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def reference(self, attrs: ClassLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        logits, labels = inputs
        loss, scale = NllLoss().reference(attrs, (log_softmax(logits), labels))
        return (loss, *log_sums(logits), scale)


@register
class CrossEntropyBackward(_ClassLossBackward):
    """dx = (softmax(logits) - target) dloss scale on counted rows. Inputs: dloss, scale, logits, largest, log_sum,
    labels, the last three per row."""

    name = "cross_entropy_backward"
    input_counts = (6,)
    integers: ClassVar[Mapping[int, DType]] = {5: DType.INT64}
    low_precision = (2,)

    def infer(self, attrs: ClassLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        logits, *of_rows = inputs[2:]
        for given in of_rows:
            if len(logits.shape) != 2 or given.shape != logits.shape[:1]:
                raise misfit(f"{self.name} has rows {logits.text()} but {given.text()}", "one number and label per row")
        return (logits,)

    def flops(self, signature: Signature) -> int:
        return 4 * signature.outputs[0].elements

    def reference(self, attrs: ClassLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, scale, logits, largest, log_sum, labels = inputs
        classes = logits.shape[1]
        rows = counted(attrs, labels, classes)[:, None]
        probabilities = np.exp(logits - largest[:, None] - log_sum[:, None])
        distance = (probabilities - targets(attrs, labels, classes)) * dloss * scale
        return (np.where(rows, distance, 0.0),)  # where none counts, the scale is infinite

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, ClassLossAttrs)
        rows, classes = sample.inputs[2].shape
        labels = draw_labels(sample.attrs, rows, classes, rng)
        logits = rng.standard_normal((rows, classes)) * 3
        return (rng.standard_normal(()), np.abs(rng.standard_normal(())), logits, *log_sums(logits), labels)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in CrossEntropy().samples():
            logits, labels = s.inputs
            saved = CrossEntropy().saved_of_rows(logits.shape[0])
            found.append(Sample(s.attrs, (SCALAR, SCALAR, logits, *saved, labels)))
        return tuple(found)


def require_share(attrs: LabelAttrs) -> None:
    if not 0 <= attrs.label_smoothing <= 1:
        raise misfit(f"label smoothing {attrs.label_smoothing} is not a share", "use a number from 0 to 1")


def log_sums(logits: Array) -> tuple[Array, Array]:
    """The largest of each row, and the logarithm of the sum of exponentials of what is left without it."""
    largest = logits.max(1)
    return largest, np.log(np.exp(logits - largest[:, None]).sum(1))


def counted(attrs: LabelAttrs, labels: Array, classes: int) -> Array:
    """Which rows count. A label out of range does not: the executor reports it after the step."""
    found: Array = (labels != attrs.ignore_index) & (labels >= 0) & (labels < classes)
    return found


def targets(attrs: LabelAttrs, labels: Array, classes: int) -> Array:
    """Smoothed one-hot rows, zero where the label does not count."""
    one_hot = (np.arange(classes) == labels[:, None]).astype(np.float64)
    smoothed = one_hot * (1 - attrs.label_smoothing) + attrs.label_smoothing / classes
    result: Array = smoothed * counted(attrs, labels, classes)[:, None]
    return result


def draw_labels(attrs: LabelAttrs, rows: int, classes: int, rng: np.random.Generator) -> Array:
    """At least one row counts, and one is ignored where `ignore_index` is a class."""
    labels = rng.integers(0, classes, rows)
    labels[0] = (attrs.ignore_index + 1) % classes
    if attrs.ignore_index >= 0:
        labels[-1] = attrs.ignore_index
    return labels
