"""Losses: one number from many items, and the gradient of that number.

Two stages: every slice leaves the loss and the weight of its items in scratch (double), then slice 0 adds them in
slice order. `scale` (1 / counted items for the mean, 1 for the sum) is saved for the backward pass, which also reads
the gradient of the loss itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

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
    common_layout,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.units import Bytes

PARTIAL_BYTES = 64
"""What a slice leaves: loss, items, first bad label; a cache line (runtime/losses.hpp)."""


class LossAttrs(Attrs):
    reduction: Literal["mean", "sum"] = "mean"


class LabelAttrs(Attrs):
    """Rows with label `ignore_index` do not count. `label_smoothing` spreads that share over all classes."""

    ignore_index: int = -100
    label_smoothing: float = 0.0


class ClassLossAttrs(LossAttrs, LabelAttrs):
    """The loss of labels is one number."""


class Loss(Op):
    """Outputs: loss (), what is kept of every item for the gradient, scale ()."""

    family = "loss"
    input_counts = (2,)
    output_names: ClassVar[tuple[str, ...]] = ("loss", "scale")
    saved_outputs = frozenset({"largest", "log_sum", "scale"})
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
        found += (writes(f"out{kept}", lo, hi) for kept in range(1, last))
        return (*found, writes("partial", index, index + 1))


class LossBackward(Op):
    """Inputs: dloss (), scale (), then what the gradient is made of. Output: dx."""

    family = "loss"
    input_counts = (4,)
    output_names = ("dx",)

    def check(self, attrs: Attrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if inputs[0].elements != 1 or inputs[1].elements != 1:
            raise misfit(f"{self.name} scales by {inputs[0].text()} and {inputs[1].text()}", "use single numbers")

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


SCALAR = TensorType(shape=())


class _PairLoss(Loss):
    """Inputs: x, target of the same shape. Outputs: loss, scale."""

    attrs_type = LossAttrs

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: LossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0] != inputs[1]:
            raise misfit(f"{self.name} cannot compare {inputs[0].text()} with {inputs[1].text()}", "make them alike")
        return (SCALAR, SCALAR)

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


class _PairLossBackward(LossBackward):
    """Inputs: dloss, scale, x, target."""

    attrs_type = LossAttrs

    def layouts(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return common_layout(inputs)

    def infer(self, attrs: LossAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[2] != inputs[3]:
            raise misfit(f"{self.name} cannot compare {inputs[2].text()} with {inputs[3].text()}", "make them alike")
        return (inputs[2],)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.outputs[0].elements // 16)}

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(s.attrs, (SCALAR, SCALAR, *s.inputs)) for s in MseLoss().samples())


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
