"""The cross-entropy of every row by itself, for losses that weight, mask or choose among rows; rows are sliced. What is
one number in the end is `cross_entropy` (label_loss.py)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes
from planner.ops.label_loss import counted, draw_labels, log_sums, targets
from planner.ops.softmax import log_softmax

NO_LABEL = -(2**62)
"""An `ignore_index` that no label is, where every row counts."""


class RowLossAttrs(Attrs):
    """As of ClassLossAttrs."""

    ignore_index: int = NO_LABEL
    label_smoothing: float = 0.0


class _OfRows(Op):
    """Of logits [rows, classes]; what else is read or written is one number per row, or logits."""

    family = "loss"
    attrs_type = RowLossAttrs
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

    def infer(self, attrs: RowLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(inputs)
        if not 0 <= attrs.label_smoothing <= 1:
            raise misfit(f"label smoothing {attrs.label_smoothing} is not a share", "use a number from 0 to 1")
        return (TensorType(shape=inputs[0].shape[:1]),) * 3

    def gradient(self, context: GradientContext) -> None:
        logits, labels = context.node.inputs
        inputs = [context.grad, logits, *context.node.outputs[1:], labels]
        context.give(0, context.emit("cross_entropy_rows_backward", inputs, context.attrs)[0])

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def reference(self, attrs: RowLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        logits, labels = inputs
        wanted = targets(attrs, labels, logits.shape[1])
        log_probs = np.where(wanted != 0, log_softmax(logits), 0.0)  # elsewhere there may be minus infinity
        return (-(wanted * log_probs).sum(1), *log_sums(logits))

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, RowLossAttrs)
        rows, classes = sample.inputs[0].shape
        return (rng.standard_normal((rows, classes)) * 3, draw_labels(sample.attrs, rows, classes, rng))

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, classes: int, **attrs: Any) -> Sample:
            types = (TensorType(shape=(rows, classes)), TensorType(shape=(rows,), dtype=DType.INT64))
            return Sample(RowLossAttrs(**attrs), types)

        return (
            case(7, 10),
            case(33, 5, label_smoothing=0.1),
            case(6, 1000, ignore_index=3),
            case(5, 1300, label_smoothing=0.1),
            case(9, 4, ignore_index=1, label_smoothing=0.2),
        )


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

    def infer(self, attrs: RowLossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        self.require_fit(inputs)
        return (inputs[1],)

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        return ((0, 1),)

    def flops(self, signature: Signature) -> int:
        return 4 * signature.outputs[0].elements

    def reference(self, attrs: RowLossAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
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
