"""The point-wise part of a GRU cell, forward and backward, each in one pass over memory.

The gates lie side by side in a row, in PyTorch's order: reset, update, new. As for the LSTM, the matrix products that
make them are `linear` nodes of their own.
"""

from collections.abc import Sequence

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, TensorType
from planner.ops.base import Array, Sample, Signature, misfit, register
from planner.ops.lstm import RowsOp

GATES = 3
KEPT = 4
"""The gates, and the new gate's product with the hidden state, which the reset gate scales."""


@register
class GruCell(RowsOp):
    """r, z = sigmoid of a + b; n = tanh(a + r b); h = (1 - z) n + z h'.

    Inputs: a and b (N, 3 H), the products with the layer's input and with the last h; h' (N, H).
    Outputs: h (N, H), and r, z, n and the third part of b (N, 4 H), kept for the gradient."""

    name = "gru_cell"
    family = "gru"
    input_counts = (3,)
    output_names = ("h", "gates")
    saved_outputs = frozenset({"gates"})
    flops_each = 45

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b, h = inputs
        if len(h.shape) != 2 or a != b or a.shape != (h.shape[0], GATES * h.shape[1]):
            raise misfit(
                f"gru_cell cannot combine gates {a.text()} and {b.text()} with the state {h.text()}",
                "a row has three gates for every element of the state",
            )
        return (h, h.model_copy(update={"shape": (h.shape[0], KEPT * h.shape[1])}))

    def gradient(self, context: GradientContext) -> None:
        inputs = [context.grad, context.node.outputs[1], context.node.inputs[2]]
        for index, gradient in enumerate(context.emit("gru_cell_backward", inputs)):
            context.give(index, gradient)

    def cell(self, signature: Signature) -> TensorType:
        return signature.inputs[2]

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, before = inputs
        (ar, az, an), (br, bz, bn) = np.split(a, GATES, axis=1), np.split(b, GATES, axis=1)
        r, z = 1 / (1 + np.exp(-ar - br)), 1 / (1 + np.exp(-az - bz))
        n = np.tanh(an + r * bn)
        return ((1 - z) * n + z * before, np.concatenate((r, z, n, bn), axis=1))

    def samples(self) -> Sequence[Sample]:
        shapes = ((6, 20), (33, 7), (1, 40))
        return tuple(
            Sample(Attrs(), (TensorType(shape=(n, GATES * h)),) * 2 + (TensorType(shape=(n, h)),)) for n, h in shapes
        )


@register
class GruCellBackward(RowsOp):
    """Inputs: dh, what the forward op kept, h'. Outputs: the gradients of a, b and h'."""

    name = "gru_cell_backward"
    family = "gru"
    input_counts = (3,)
    output_names = ("da", "db", "dh")
    flops_each = 25

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dh, gates, before = inputs
        if dh != before or len(dh.shape) != 2 or gates.shape != (dh.shape[0], KEPT * dh.shape[1]):
            types = ", ".join(t.text() for t in inputs)
            raise misfit(f"gru_cell_backward cannot combine {types}", "use the operands of one gru_cell")
        wide = dh.model_copy(update={"shape": (dh.shape[0], GATES * dh.shape[1])})
        return (wide, wide, dh)

    def cell(self, signature: Signature) -> TensorType:
        return signature.inputs[0]

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dh, gates, before = inputs
        r, z, n, bn = np.split(gates, KEPT, axis=1)
        bent = dh * (1 - z) * (1 - n * n)
        dr, dz = bent * bn * r * (1 - r), dh * (before - n) * z * (1 - z)
        return (np.concatenate((dr, dz, bent), axis=1), np.concatenate((dr, dz, bent * r), axis=1), dh * z)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dh, _, before = (rng.standard_normal(t.shape) for t in sample.inputs)
        wide = (dh.shape[0], GATES * dh.shape[1])
        _, gates = GruCell().reference(Attrs(), (rng.standard_normal(wide), rng.standard_normal(wide), before))
        return (dh, gates, before)

    def samples(self) -> Sequence[Sample]:
        def case(n: int, h: int) -> Sample:
            state = TensorType(shape=(n, h))
            return Sample(Attrs(), (state, TensorType(shape=(n, KEPT * h)), state))

        return (case(6, 20), case(33, 7))
