"""Parameter updates, in place, with PyTorch's formulas. The learning rate and the step count are run-time scalars
of the executor; `lr` here is only where they start."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from planner.graph.model import Attrs, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, register, split


class SgdAttrs(Attrs):
    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0


class AdamAttrs(Attrs):
    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    """AdamW: decay the parameter itself instead of adding to the gradient."""


class _Update(Op):
    family = "optimizer"
    low_precision = (0,)

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if any(t.shape != inputs[0].shape or t.layout is not inputs[0].layout for t in updates):
            raise misfit(f"{self.name} cannot apply {inputs[0].text()} to {updates[0].text()}", "make them alike")

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return ()

    def flops(self, signature: Signature) -> int:
        return 4 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.inputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.inputs[0].elements, mode.slices, index)
        changed = tuple(Access(f"up{i}", True, (lo, hi)) for i in range(len(signature.updates)))
        return (Access("in0", False, (lo, hi)), *changed)


@register
class SgdUpdate(_Update):
    """Input: gradient; updates: parameter, [momentum]. v = momentum v + g + wd w; w -= lr v."""

    name = "sgd_update"
    joint_launch = 64
    update_counts = (1, 2)
    attrs_type = SgdAttrs

    def check(self, attrs: SgdAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if len(updates) != (2 if attrs.momentum else 1):
            raise misfit(f"sgd_update with momentum {attrs.momentum} updates {len(updates)} values", "add its state")

    def reference(self, attrs: SgdAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        g, w, *rest = inputs
        g = g + attrs.weight_decay * w
        if not rest:
            return (w - attrs.lr * g,)
        v = attrs.momentum * rest[0] + g
        step = g + attrs.momentum * v if attrs.nesterov else v
        return (w - attrs.lr * step, v)

    def samples(self) -> Sequence[Sample]:
        w = TensorType(shape=(8, 9))
        return (
            Sample(SgdAttrs(lr=0.1), (w, w)),
            Sample(SgdAttrs(lr=0.1, momentum=0.9, weight_decay=1e-4), (w, w, w)),
            Sample(SgdAttrs(lr=0.05, momentum=0.8, nesterov=True), (w, w, w)),
        )


@register
class AdamUpdate(_Update):
    """Input: gradient; updates: parameter, exp_avg, exp_avg_sq. Kingma and Ba, algorithm 1; AdamW if decoupled."""

    name = "adam_update"
    joint_launch = 47
    update_counts = (3,)
    attrs_type = AdamAttrs

    def flops(self, signature: Signature) -> int:
        return 12 * signature.inputs[0].elements

    def reference(self, attrs: AdamAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The first step (bias corrections of step 1)."""
        g, w, m, v = inputs
        if attrs.decoupled:
            w = w * (1 - attrs.lr * attrs.weight_decay)
        else:
            g = g + attrs.weight_decay * w
        m = attrs.beta1 * m + (1 - attrs.beta1) * g
        v = attrs.beta2 * v + (1 - attrs.beta2) * g * g
        corrected = np.sqrt(v / (1 - attrs.beta2)) + attrs.eps
        return (w - attrs.lr * (m / (1 - attrs.beta1)) / corrected, m, v)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        g, w, m, v = super().draw(sample, rng)
        return (g, w, m, np.abs(v))

    def samples(self) -> Sequence[Sample]:
        w = TensorType(shape=(7, 30))
        return tuple(Sample(AdamAttrs(lr=1e-2, weight_decay=0.01, decoupled=d), (w, w, w, w)) for d in (False, True))
