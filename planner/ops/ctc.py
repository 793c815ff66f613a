"""Connectionist temporal classification (Graves et al., 2006, section 4.1): how likely a sequence of labels is, over
all alignments to the frames of a longer sequence.

States are the labels with a blank before, between and behind them. A path stays in a state, goes to the next one, or
skips the blank between two labels that differ. Forward and backward variables are logarithms, less the largest of
their frame, so neither long sequences nor confident mistakes lose digits, and posteriors add up to 1 in every frame.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, TensorType
from planner.ops.base import (
    Access,
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
from planner.units import Bytes


class _Ctc(Op):
    family = "ctc"

    def sizes(self, signature: Signature) -> tuple[int, int, int]:
        """Sequences, frames and states."""
        sequences, frames, states = signature.outputs[-1].shape
        return sequences, frames, states

    def flops(self, signature: Signature) -> int:
        """Per state and frame about as much as four exponentials."""
        return 40 * signature.outputs[-1].elements

    def measured_with(self, signature: Signature) -> Mapping[int, Array]:
        """All sequences are of full length."""
        sequences, frames, states = self.sizes(signature)
        first = min(self.integers)
        return {first: np.full(sequences, frames), first + 1: np.full(sequences, states // 2)}

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "sequences"): self.sizes(signature)[0]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        """Every slice touches its own sequences of all operands."""
        lo, hi = split(self.sizes(signature)[0], mode.slices, index)
        operands = [(f"in{i}", t) for i, t in enumerate(signature.inputs)]
        results = [(f"out{i}", t) for i, t in enumerate(signature.outputs)]
        scratch = [writes(part.name, index, index + 1) for part in self.scratch(signature, mode, facts)]
        return (
            *(reads(o, lo * (t.elements // t.shape[0]), hi * (t.elements // t.shape[0])) for o, t in operands),
            *(writes(o, lo * (t.elements // t.shape[0]), hi * (t.elements // t.shape[0])) for o, t in results),
            *scratch,
        )


@register
class CtcLoss(_Ctc):
    """loss[n] = -log of the probability of sequence n's labels.

    Inputs: log-probabilities of every state in every frame [sequences, frames, states], states an odd number; 1 where a
    path may skip the state before, else 0 [sequences, states]; int64 frames and int64 labels of every sequence
    [sequences], which count as far as there are any. Outputs: loss [sequences], infinite where no path is long enough;
    forward variables [sequences, frames, states], 0 behind a sequence's frames and states.
    """

    name = "ctc_loss"
    input_counts = (4,)
    integers: ClassVar[Mapping[int, DType]] = {2: DType.INT64, 3: DType.INT64}
    constants = frozenset({1})
    output_names = ("loss", "forward")
    saved_outputs = frozenset({"forward"})

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, skips, frames, labels = inputs
        fits = len(x.shape) == 3 and x.shape[2] % 2 == 1 and skips.shape == (x.shape[0], x.shape[2])
        if not fits or frames.shape != x.shape[:1] or labels.shape != x.shape[:1]:
            raise misfit(
                f"ctc_loss cannot align {x.text()} by {skips.text()}, {frames.text()} and {labels.text()}",
                "use [sequences, frames, 2 labels + 1], skips [sequences, states], and two lengths per sequence",
            )
        return (TensorType(shape=x.shape[:1], dtype=x.dtype), x)

    def gradient(self, context: GradientContext) -> None:
        inputs = [context.grad, *context.node.inputs, context.node.outputs[1]]
        context.give(0, context.emit("ctc_loss_backward", inputs)[0])

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, skips, frames, labels = inputs
        loss, forward = np.zeros(x.shape[0], x.dtype), np.zeros_like(x)
        for n, (length, states) in enumerate(_lengths(x, frames, labels)):
            before, total = _start(states, x.dtype), 0.0
            for t in range(length):
                raw = x[n, t, :states] + _entered(before, skips[n, :states], first=t == 0)
                total += (top := _top(raw))
                forward[n, t, :states] = before = raw - top
            loss[n] = -(total + _logsumexp([before[-1], before[-2] if states > 1 else -np.inf]))
        return (loss, forward)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Every sequence has a path."""
        n, t, s = sample.inputs[0].shape
        frames = rng.integers(1, t + 1, n)
        labels = np.minimum(rng.integers(0, s // 2 + 1, n), frames // 2)
        skips = rng.integers(0, 2, (n, s)) * (np.arange(s) % 2)
        skips[:, :2] = 0
        return (3 * rng.standard_normal((n, t, s)) - 2, skips.astype(np.float64), frames, labels)

    def samples(self) -> Sequence[Sample]:
        def case(n: int, t: int, s: int) -> Sample:
            lengths = TensorType(shape=(n,), dtype=DType.INT64)
            return Sample(Attrs(), (TensorType(shape=(n, t, s)), TensorType(shape=(n, s)), lengths, lengths))

        return (case(5, 9, 7), case(2, 40, 33), case(3, 4, 1), case(1, 1, 3), case(7, 90, 21))


@register
class CtcLossBackward(_Ctc):
    """dx[n, t, s] = -dloss[n] times the share of paths, by their probability, that are in state s at frame t.

    Inputs: dloss, ctc_loss's inputs, its forward variables. Where dloss is 0, so is dx; without a path it is NaN.
    """

    name = "ctc_loss_backward"
    input_counts = (6,)
    integers: ClassVar[Mapping[int, DType]] = {3: DType.INT64, 4: DType.INT64}
    output_names = ("dx",)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        loss, forward = CtcLoss().infer(Attrs(), inputs[1:5])
        if inputs[0].shape != loss.shape or inputs[5].shape != forward.shape:
            raise misfit(f"{inputs[0].text()} and {inputs[5].text()} are not of such a loss", "give its results")
        return (inputs[1],)

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """Per slice the backward variables of two frames."""
        return (ScratchPart("backward", Bytes(2 * 4 * self.sizes(signature)[2] * mode.slices)),)

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dloss, x, skips, frames, labels, forward = inputs
        dx = np.zeros_like(x)
        for n, (length, states) in enumerate(_lengths(x, frames, labels)):
            if dloss[n] == 0:
                continue
            behind = np.full(states, -np.inf, x.dtype)
            behind[-2:] = 0.0
            for t in reversed(range(length)):
                paths = forward[n, t, :states] + behind
                share = np.exp(paths - _top(paths)) * (0 if (paths == -np.inf).all() else 1)
                with np.errstate(invalid="ignore"):
                    dx[n, t, :states] = -dloss[n] * share / share.sum()
                left = x[n, t, :states] + behind
                left = _logsumexp(_neighbours(left[::-1], _turned(skips[n, :states])))[::-1]
                behind = left - _top(left)
        return (dx,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        drawn = CtcLoss().draw(Sample(Attrs(), sample.inputs[1:5]), rng)
        return (rng.standard_normal(sample.inputs[0].shape), *drawn, CtcLoss().reference(Attrs(), drawn)[1])

    def samples(self) -> Sequence[Sample]:
        found = []
        for sample in CtcLoss().samples():
            loss, forward = CtcLoss().infer(Attrs(), sample.inputs)
            found.append(Sample(Attrs(), (loss, *sample.inputs, forward)))
        return tuple(found)


def _lengths(x: Array, frames: Array, labels: Array) -> Sequence[tuple[int, int]]:
    """Frames and states of every sequence."""
    _, most_frames, most_states = x.shape
    return [
        (int(np.clip(f, 0, most_frames)), 2 * int(np.clip(k, 0, most_states // 2)) + 1)
        for f, k in zip(frames, labels, strict=True)
    ]


def _start(states: int, dtype: Any) -> Array:
    """Before the first frame a path is in front of the first state."""
    before = np.full(states, -np.inf, dtype)
    before[0] = 0.0
    return before


def _entered(before: Array, skips: Array, first: bool) -> Array:
    """How likely a frame's states are entered: the first frame's may be the first blank or the first label."""
    entered: Array = before.copy() if first else _logsumexp(_neighbours(before, skips))
    if first:
        entered[1:2] = 0.0
    return entered


def _neighbours(values: Array, skips: Array) -> list[Array]:
    """From the state itself, the one before it and, where that may be skipped, the second one before it."""
    padded = np.concatenate([np.full(2, -np.inf, values.dtype), values])
    return [values, padded[1:-1], np.where(skips > 0, padded[:-2], -np.inf)]


def _turned(skips: Array) -> Array:
    """For paths backwards: which states may be left for the second one behind them, from the last state on."""
    return np.concatenate([np.zeros(2), skips[2:][::-1]])[: len(skips)]


def _logsumexp(parts: Sequence[Any]) -> Any:
    stacked = np.stack(parts)
    top = stacked.max(0)
    shift = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return shift + np.log(np.exp(stacked - shift).sum(0))


def _top(values: Array) -> Any:
    """The largest; 0 where nothing is possible."""
    return top if np.isfinite(top := values.max()) else values.dtype.type(0)
