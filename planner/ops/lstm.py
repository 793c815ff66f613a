"""The point-wise part of an LSTM cell, forward and backward, each in one pass over memory.

The four gates lie side by side in a row, in PyTorch's order: input, forget, cell, output. The matrix products that
make them are `linear` nodes of their own, so that a planner may run those of different layers and times side by side.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, register, split

GATES = 4


class LstmGradAttrs(Attrs):
    """Which gradients arrive: of the hidden state h, of the cell state c. At least one does."""

    dh: bool = True
    dc: bool = True


class RowsOp(Op):
    """Every row, one example of the batch, is computed from the same row of every operand."""

    family = "lstm"
    flops_each: ClassVar[int]
    """Floating-point operations per element of the cell state."""

    def cell(self, signature: Signature) -> TensorType:
        """The type of the cell state: (rows, columns)."""
        raise NotImplementedError

    def flops(self, signature: Signature) -> int:
        return self.flops_each * self.cell(signature).elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): self.cell(signature).shape[0]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        rows = self.cell(signature).shape[0]
        lo, hi = split(rows, mode.slices, index)

        def touch(kind: str, types: Sequence[TensorType], write: bool) -> list[Access]:
            sizes = [t.elements // rows for t in types]
            return [Access(f"{kind}{i}", write, (lo * n, hi * n)) for i, n in enumerate(sizes)]

        return (*touch("in", signature.inputs, False), *touch("out", signature.outputs, True))

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        pairs = [(o, i) for o in range(len(signature.outputs)) for i in range(len(signature.inputs))]
        return tuple((o, i) for o, i in pairs if signature.outputs[o] == signature.inputs[i])


@register
class LstmCell(RowsOp):
    """i, f, g, o = gates of a + b, sigmoid except for tanh of g; c = f c' + i g; h = o tanh(c).

    Inputs: a and b (N, 4 H), usually the products with the layer's input and with the last h; c' (N, H).
    Outputs: h, c (N, H), and the four gates (N, 4 H), kept for the gradient."""

    name = "lstm_cell"
    input_counts = (3,)
    output_names = ("h", "c", "gates")
    saved_outputs = frozenset({"gates"})
    flops_each = 60

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b, c = inputs
        if len(c.shape) != 2 or a != b or a.shape != (c.shape[0], GATES * c.shape[1]):
            raise misfit(
                f"lstm_cell cannot combine gates {a.text()} and {b.text()} with the state {c.text()}",
                "a row has four gates for every element of the state",
            )
        return (c, c, a)

    def gradient(self, context: GradientContext) -> None:
        dh, dc, _ = context.grad_outputs
        _, c, gates = context.node.outputs
        given = [value for value in (dh, dc) if value is not None]
        attrs = LstmGradAttrs(dh=dh is not None, dc=dc is not None)
        inputs = [*given, gates, context.node.inputs[2], c]
        dgates, dc_before = context.emit("lstm_cell_backward", inputs, attrs)
        context.give(0, dgates)
        context.give(1, dgates)
        context.give(2, dc_before)

    def cell(self, signature: Signature) -> TensorType:
        return signature.inputs[2]

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, before = inputs
        i, f, g, o = np.split(a + b, GATES, axis=1)
        i, f, o = (1 / (1 + np.exp(-x)) for x in (i, f, o))
        g = np.tanh(g)
        c = f * before + i * g
        return (o * np.tanh(c), c, np.concatenate((i, f, g, o), axis=1))

    def samples(self) -> Sequence[Sample]:
        shapes = ((6, 20), (33, 7), (1, 40))
        return tuple(
            Sample(Attrs(), (TensorType(shape=(n, GATES * h)),) * 2 + (TensorType(shape=(n, h)),)) for n, h in shapes
        )


@register
class LstmCellBackward(RowsOp):
    """Inputs: [dh], [dc], the gates, c', c. Outputs: the gradients of a (and of b: they are equal) and of c'."""

    name = "lstm_cell_backward"
    attrs_type = LstmGradAttrs
    input_counts = (4, 5)
    output_names = ("dgates", "dc")
    flops_each = 45

    def check(self, attrs: LstmGradAttrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if len(inputs) != 3 + attrs.dh + attrs.dc:
            raise misfit(f"lstm_cell_backward with {attrs.text()} takes {3 + attrs.dh + attrs.dc} inputs", "count them")

    def infer(self, attrs: LstmGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        *others, gates, before, c = inputs
        if any(t != c for t in (*others, before)) or gates.shape != (c.shape[0], GATES * c.shape[-1]):
            types = ", ".join(t.text() for t in inputs)
            raise misfit(f"lstm_cell_backward cannot combine {types}", "use the operands of one lstm_cell")
        return (gates, c)

    def cell(self, signature: Signature) -> TensorType:
        return signature.inputs[-1]

    def reference(self, attrs: LstmGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        *given, gates, before, c = inputs
        dh = given[0] if attrs.dh else np.zeros_like(c)
        i, f, g, o = np.split(gates, GATES, axis=1)
        bent = np.tanh(c)
        dc = dh * o * (1 - bent * bent) + (given[-1] if attrs.dc else 0)
        parts = (dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g), dh * bent * o * (1 - o))
        return (np.concatenate(parts, axis=1), dc * f)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, LstmGradAttrs)
        gates, _, c = sample.inputs[-3:]
        drawn = (rng.standard_normal(gates.shape), rng.standard_normal(gates.shape), rng.standard_normal(c.shape))
        _, after, opened = LstmCell().reference(Attrs(), drawn)
        given = [rng.standard_normal(c.shape) for _ in sample.inputs[:-3]]
        return (*given, opened, drawn[2], after)

    def samples(self) -> Sequence[Sample]:
        def case(n: int, h: int, dh: bool, dc: bool) -> Sample:
            c = TensorType(shape=(n, h))
            return Sample(LstmGradAttrs(dh=dh, dc=dc), (*(c,) * (dh + dc), TensorType(shape=(n, GATES * h)), c, c))

        return (case(6, 20, True, True), case(33, 7, True, False), case(5, 9, False, True))
