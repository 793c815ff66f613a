"""The cross-entropy of every row by itself, for losses that weight, mask or choose among rows; rows are sliced. What is
one number in the end is `cross_entropy` (label_loss.py)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import DType, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes
from planner.ops.label_loss import CrossEntropy, counted, log_sums, require_share, targets
from planner.ops.loss import LabelAttrs
from planner.ops.softmax import log_softmax


class _OfRows(Op):
    """Of logits [rows, classes]; what else is read or written is one number per row, or logits."""

    family = "loss"
    attrs_type = LabelAttrs
    input_layout = Layout.ROW_MAJOR
    logits_at: ClassVar[int]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): signature.inputs[self.logits_at].shape[0]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.inputs[self.logits_at].shape[0], mode.slices, index)

        def each(type_: TensorType) -> tuple[int, int]:
            columns = type_.shape[1] if len(type_.shape) == 2 else 1
            return lo * columns, hi * columns

        read = (reads(f"in{i}", *each(t)) for i, t in enumerate(signature.inputs))
        return (*read, *(writes(f"out{i}", *each(t)) for i, t in enumerate(signature.outputs)))

    def require_fit(self, inputs: Sequence[TensorType]) -> None:
        logits = inputs[self.logits_at]
        for position, given in enumerate(inputs):
            if len(logits.shape) != 2 or (position != self.logits_at and given.shape != logits.shape[:1]):
                raise misfit(
                    f"{self.name} has rows {logits.text()} but {given.text()}",
                    "use scores [rows, classes] and one number and int64 label per row",
                )


@register
class CrossEntropyRows(_OfRows):
    """loss[row] = -log_softmax(logits)[row, label]; 0 for a row that does not count. Inputs: logits, int64 labels.
    Outputs: loss, and what `cross_entropy` keeps of every row."""

    name = "cross_entropy_rows"
    input_counts = (2,)
    output_names = ("loss", "largest", "log_sum")
    saved_outputs = frozenset({"largest", "log_sum"})
    integers: ClassVar[Mapping[int, DType]] = {1: DType.INT64}
    low_precision = (0,)
    logits_at = 0

    def infer(self, attrs: LabelAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(inputs)
        require_share(attrs)
        return (TensorType(shape=inputs[0].shape[:1]),) * 3

    def gradient(self, context: GradientContext) -> None:
        logits, labels = context.node.inputs
        inputs = [context.grad, logits, *context.node.outputs[1:], labels]
        context.give(0, context.emit("cross_entropy_rows_backward", inputs, context.attrs)[0])

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def reference(self, attrs: LabelAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        logits, labels = inputs
        wanted = targets(attrs, labels, logits.shape[1])
        log_probs = np.where(wanted != 0, log_softmax(logits), 0.0)  # elsewhere there may be minus infinity
        return (-(wanted * log_probs).sum(1), *log_sums(logits))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        return CrossEntropy().draw(sample, rng)

    def samples(self) -> Sequence[Sample]:
        fields = set(LabelAttrs.model_fields)
        alike = CrossEntropy().samples()
        return tuple(Sample(LabelAttrs(**s.attrs.model_dump(include=fields)), s.inputs) for s in alike)


@register
class CrossEntropyRowsBackward(_OfRows):
    """dx[row] = (softmax(logits) - target)[row] dloss[row] where the row counts. Inputs: dloss, logits, largest,
    log_sum, labels."""

    name = "cross_entropy_rows_backward"
    input_counts = (5,)
    output_names = ("dx",)
    integers: ClassVar[Mapping[int, DType]] = {4: DType.INT64}
    low_precision = (1,)
    logits_at = 1

    def infer(self, attrs: LabelAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(inputs)
        return (inputs[1],)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 1),)

    def flops(self, signature: Signature) -> int:
        return 4 * signature.outputs[0].elements

    def reference(self, attrs: LabelAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, logits, largest, log_sum, labels = inputs
        classes = logits.shape[1]
        probabilities = np.exp(logits - largest[:, None] - log_sum[:, None])
        distance = (probabilities - targets(attrs, labels, classes)) * dloss[:, None]
        return (np.where(counted(attrs, labels, classes)[:, None], distance, 0.0),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        logits, labels = CrossEntropyRows().draw(Sample(sample.attrs, (sample.inputs[1], sample.inputs[4])), rng)
        return (rng.standard_normal(logits.shape[0]), logits, *log_sums(logits), labels)

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in CrossEntropyRows().samples():
            logits, labels = s.inputs
            of_rows = TensorType(shape=logits.shape[:1])
            found.append(Sample(s.attrs, (of_rows, logits, of_rows, of_rows, labels)))
        return tuple(found)
