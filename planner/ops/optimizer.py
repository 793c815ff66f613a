"""Parameter updates, in place, with PyTorch's formulas. The learning rate and the step count are run-time scalars
of the executor; `lr` here is only where they start.

An update may take a factor besides its gradient, of one that is clipped by the norm of all (Pascanu, Mikolov and
Bengio, "On the difficulty of training recurrent neural networks", algorithm 1): `square_sum` of every gradient, one
`clip_factor` of all sums. So no gradient is read or written once more to be scaled.

Where a step takes several batches, `gradient_sum` keeps what their gradients add up to, and the update reads that."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes
from planner.ops.loss import SCALAR
from planner.ops.streaming import UPDATE_STREAMS


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


class RmspropAttrs(Attrs):
    lr: float
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False
    """Divide by the gradient's standard deviation, not by its root mean square."""


class AdagradAttrs(Attrs):
    lr: float
    lr_decay: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0
    initial: float = 0.0
    """What the sum of squares starts from."""


class ClipAttrs(Attrs):
    costless = frozenset({"max_norm"})

    max_norm: float


LEAST_BLOCK, MOST_BLOCKS = 4096, 512
"""Elements of which squares are added up apart, and how many such blocks a gradient has: enough for a GPU's
multiprocessors, and for more processors than there are."""


def square_block(elements: int) -> int:
    """Elements of a block, a multiple of 16."""
    return max(LEAST_BLOCK, -(-elements // (16 * MOST_BLOCKS)) * 16)


@register
class SquareSum(Op):
    """parts[k] = the sum of squares of the k-th block of x: one order of additions, however it is sliced."""

    name = "square_sum"
    family = "optimizer"
    low_precision = (0,)
    input_layout = Layout.ROW_MAJOR
    output_names = ("parts",)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        elements = inputs[0].elements
        return (TensorType(shape=(-(-elements // square_block(elements)),)),)

    def flops(self, signature: Signature) -> int:
        return 2 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "blocks"): signature.outputs[0].elements}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        elements = signature.inputs[0].elements
        lo, hi = split(signature.outputs[0].elements, mode.slices, index)
        block = square_block(elements)
        return (reads("in0", lo * block, min(hi * block, elements)), writes("out0", lo, hi))

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x = inputs[0].reshape(-1)
        return (np.add.reduceat(x * x, range(0, x.size, square_block(x.size))),)

    def samples(self) -> Sequence[Sample]:
        shapes = ((8, 9), (), (30, 800), (4097,), (2, 3, 5, 1500))
        return tuple(Sample(Attrs(), (TensorType(shape=shape),)) for shape in shapes)


@register
class ClipFactor(Op):
    """What gradients are multiplied by so that their norm is at most `max_norm`: min(1, max_norm / (norm + 1e-6)), as
    torch.nn.utils.clip_grad_norm_ does. Input: sums of squares; outputs: the factor, the norm."""

    name = "clip_factor"
    family = "optimizer"
    attrs_type = ClipAttrs
    output_names = ("factor", "norm")

    def infer(self, attrs: ClipAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs[0].shape) != 1:
            raise misfit(f"clip_factor cannot add up {inputs[0].text()}", "use one row of sums")
        return (SCALAR, SCALAR)

    def flops(self, signature: Signature) -> int:
        return signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "whole"): 1}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        return (reads("in0", 0, signature.inputs[0].elements), writes("out0", 0, 1), writes("out1", 0, 1))

    def reference(self, attrs: ClipAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        norm = np.sqrt(inputs[0].sum())
        return (np.minimum(1.0, attrs.max_norm / (norm + 1e-6)), norm)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        return tuple(np.abs(drawn) for drawn in super().draw(sample, rng))

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(ClipAttrs(max_norm=m), (TensorType(shape=(n,)),)) for m, n in ((0.5, 300), (100.0, 7)))


class _Update(Op):
    """Inputs: gradient, [factor ()]."""

    family = "optimizer"
    low_precision = (0,)
    input_counts: ClassVar[tuple[int, ...]] = (1, 2)

    def check(self, attrs: Any, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if inputs[1:] and inputs[1] != SCALAR:
            raise misfit(f"{self.name} cannot scale its gradient by {inputs[1].text()}", "use a single number")
        if any(t.shape != inputs[0].shape or t.layout is not inputs[0].layout for t in updates):
            raise misfit(f"{self.name} cannot apply {inputs[0].text()} to {updates[0].text()}", "make them alike")

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return ()

    def flops(self, signature: Signature) -> int:
        return 4 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.inputs[0].elements // 16)}

    def schedules(self, signature: Signature) -> Sequence[str]:
        return UPDATE_STREAMS

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.inputs[0].elements, mode.slices, index)
        changed = tuple(Access(f"up{i}", True, (lo, hi)) for i in range(len(signature.updates)))
        factor = tuple(reads("in1", 0, 1) for _ in signature.inputs[1:])
        return (Access("in0", False, (lo, hi)), *factor, *changed)

    def scaled(self, given: Sequence[Array], updates: int) -> list[Array]:
        """The gradient, times its factor where it has one, and what is updated."""
        g, *factor = given[: len(given) - updates]
        return [g * factor[0] if factor else g, *given[len(given) - updates :]]


@register
class GradientSum(_Update):
    """Inputs: gradient; updates: sum. The first batch's gradient takes the place of what an earlier step left; the last
    one's makes the mean of the sum, which is what the update reads. Which batch it is, the executor says (`accumulate`,
    `step`)."""

    name = "gradient_sum"
    joint_launch = 111
    input_counts = (1,)
    update_counts = (1,)

    def flops(self, signature: Signature) -> int:
        return 2 * signature.inputs[0].elements

    def schedules(self, signature: Signature) -> Sequence[str]:
        return ()  # the sum is read once, in slices like these

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """Of the only batch of a step."""
        return (inputs[0],)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(Attrs(), (w, w)) for w in (TensorType(shape=(8, 9)), TensorType(shape=(4099,))))


@register
class SgdUpdate(_Update):
    """Inputs: gradient, [factor]; updates: parameter, [momentum]. v = momentum v + g + wd w; w -= lr v."""

    name = "sgd_update"
    joint_launch = 56
    update_counts = (1, 2)
    attrs_type = SgdAttrs

    def check(self, attrs: SgdAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if len(updates) != (2 if attrs.momentum else 1):
            raise misfit(f"sgd_update with momentum {attrs.momentum} updates {len(updates)} values", "add its state")

    def reference(self, attrs: SgdAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        g, w, *rest = self.scaled(inputs, 2 if attrs.momentum else 1)
        g = g + attrs.weight_decay * w
        if not rest:
            return (w - attrs.lr * g,)
        v = attrs.momentum * rest[0] + g
        step = g + attrs.momentum * v if attrs.nesterov else v
        return (w - attrs.lr * step, v)

    def samples(self) -> Sequence[Sample]:
        w, more = TensorType(shape=(8, 9)), TensorType(shape=(41, 63))
        return (
            Sample(SgdAttrs(lr=0.1), (w, w)),
            Sample(SgdAttrs(lr=0.1, momentum=0.9), (more, more, more)),
            Sample(SgdAttrs(lr=0.1, momentum=0.9, weight_decay=1e-4), (w, w, w)),
            Sample(SgdAttrs(lr=0.05, momentum=0.8, nesterov=True), (w, w, w)),
            Sample(SgdAttrs(lr=0.1, weight_decay=0.1), (w, SCALAR, w)),
            Sample(SgdAttrs(lr=0.1, momentum=0.9, weight_decay=1e-4), (w, SCALAR, w, w)),
        )


@register
class AdamUpdate(_Update):
    """Inputs: gradient, [factor]; updates: parameter, exp_avg, exp_avg_sq. Kingma and Ba, algorithm 1; AdamW if
    decoupled."""

    name = "adam_update"
    joint_launch = 43
    update_counts = (3,)
    attrs_type = AdamAttrs

    def flops(self, signature: Signature) -> int:
        return 12 * signature.inputs[0].elements

    def reference(self, attrs: AdamAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The first step (bias corrections of step 1)."""
        g, w, m, v = self.scaled(inputs, 3)
        if attrs.decoupled:
            w = w * (1 - attrs.lr * attrs.weight_decay)
        else:
            g = g + attrs.weight_decay * w
        m = attrs.beta1 * m + (1 - attrs.beta1) * g
        v = attrs.beta2 * v + (1 - attrs.beta2) * g * g
        corrected = np.sqrt(v / (1 - attrs.beta2)) + attrs.eps
        return (w - attrs.lr * (m / (1 - attrs.beta1)) / corrected, m, v)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        *others, v = super().draw(sample, rng)
        return (*others, np.abs(v))

    def samples(self) -> Sequence[Sample]:
        w, more = TensorType(shape=(7, 30)), TensorType(shape=(41, 63))
        large = Sample(AdamAttrs(lr=1e-2), (more, more, more, more))
        plain = tuple(Sample(AdamAttrs(lr=1e-2, weight_decay=0.01, decoupled=d), (w, w, w, w)) for d in (False, True))
        return (*plain, large, Sample(AdamAttrs(lr=1e-2, weight_decay=0.01), (w, SCALAR, w, w, w)))


@register
class RmspropUpdate(_Update):
    """Inputs: gradient, [factor]; updates: parameter, square_avg, [grad_avg], [momentum]. Tieleman and Hinton, lecture
    6.5; centered as in Graves, "Generating sequences with recurrent neural networks", equations 38 to 41."""

    name = "rmsprop_update"
    joint_launch = 39
    update_counts = (2, 3, 4)
    attrs_type = RmspropAttrs

    def check(self, attrs: RmspropAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if len(updates) != 2 + attrs.centered + (attrs.momentum > 0):
            what = f"rmsprop_update, centered {attrs.centered}, with momentum {attrs.momentum}"
            raise misfit(f"{what} updates {len(updates)} values", "add its states")

    def flops(self, signature: Signature) -> int:
        return 12 * signature.inputs[0].elements

    def reference(self, attrs: RmspropAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        g, w, square, *rest = self.scaled(inputs, 2 + attrs.centered + (attrs.momentum > 0))
        g = g + attrs.weight_decay * w
        square = attrs.alpha * square + (1 - attrs.alpha) * g * g
        mean = [rest[0] + (1 - attrs.alpha) * (g - rest[0])] if attrs.centered else []
        step = g / (np.sqrt(np.maximum(square - (mean[0] ** 2 if mean else 0), 0)) + attrs.eps)
        moved = [attrs.momentum * rest[-1] + step] if attrs.momentum else []
        return (w - attrs.lr * (moved[0] if moved else step), square, *mean, *moved)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """The mean of squares is no smaller than the square of the mean."""
        attrs, drawn = sample.attrs, list(super().draw(sample, rng))
        assert isinstance(attrs, RmspropAttrs)
        at = len(drawn) - (1 + attrs.centered + (attrs.momentum > 0))
        drawn[at] = drawn[at] ** 2 + (drawn[at + 1] ** 2 if attrs.centered else 0) + 0.1
        return tuple(drawn)

    def samples(self) -> Sequence[Sample]:
        w = TensorType(shape=(7, 30))
        return (
            Sample(RmspropAttrs(lr=1e-2, alpha=0.9), (w, w, w)),
            Sample(RmspropAttrs(lr=1e-2, weight_decay=0.1, momentum=0.8), (w, SCALAR, w, w, w)),
            Sample(RmspropAttrs(lr=1e-2, eps=1e-3, centered=True), (w, w, w, w)),
            Sample(RmspropAttrs(lr=1e-2, alpha=0.8, momentum=0.9, centered=True), (w, w, w, w, w)),
        )


@register
class AdagradUpdate(_Update):
    """Inputs: gradient, [factor]; updates: parameter, sum. Duchi, Hazan and Singer, "Adaptive subgradient methods for
    online learning and stochastic optimization", with diagonal matrices."""

    name = "adagrad_update"
    joint_launch = 58
    update_counts = (2,)
    attrs_type = AdagradAttrs

    def flops(self, signature: Signature) -> int:
        return 8 * signature.inputs[0].elements

    def reference(self, attrs: AdagradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        """The first step, whose rate has not decayed."""
        g, w, total = self.scaled(inputs, 2)
        g = g + attrs.weight_decay * w
        total = total + g * g
        return (w - attrs.lr * g / (np.sqrt(total) + attrs.eps), total)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        *others, total = super().draw(sample, rng)
        return (*others, np.abs(total))

    def samples(self) -> Sequence[Sample]:
        w = TensorType(shape=(7, 30))
        return (
            Sample(AdagradAttrs(lr=1e-2), (w, w, w)),
            Sample(AdagradAttrs(lr=1e-2, lr_decay=0.1, weight_decay=0.1, eps=1e-3), (w, SCALAR, w, w)),
        )
