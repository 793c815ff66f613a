"""The largest element of every column among rows that share a target: what graph networks take from neighbours.

As in ops/sparse.py, entry i of a sparse matrix takes row `sources[i]` to row `targets[i]`. Equal elements share a
gradient, as in PyTorch's `scatter_reduce`.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import DType, TensorType
from planner.ops.base import Array, Sample, misfit, register
from planner.ops.sparse import ByTarget, ByTargetAttrs, inside


class SegmentAttrs(ByTargetAttrs):
    """Nothing else."""


class _Segment(ByTarget):
    family = "segment"
    attrs_type = SegmentAttrs


@register
class SegmentMax(_Segment):
    """y[targets[i]] = max(y[targets[i]], x[sources[i]]) over all entries i; minus infinity where a row has none, NaN
    where one is. `share`: 1 / how many elements are that, 0 where there is none. Inputs: x [.., columns],
    sources [entries], targets [entries]. Outputs: y [rows, columns], share [rows, columns]. A target outside of y is
    left out, as is a source outside of x; the executor reports both."""

    name = "segment_max"
    input_counts = (3,)
    output_names = ("y", "share")
    first_entries = 1
    integers: ClassVar[Mapping[int, DType]] = {1: DType.INT64, 2: DType.INT64}

    def infer(self, attrs: SegmentAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if len(inputs[0].shape) != 2:
            raise misfit(f"segment_max cannot pick rows of {inputs[0].text()}", "use a matrix [rows, columns]")
        self.count(inputs)
        return (TensorType(shape=(attrs.rows, inputs[0].shape[1])),) * 2

    def gradient(self, context: GradientContext) -> None:
        x, sources, targets = context.node.inputs
        y, share = context.node.outputs
        if context.grad_outputs[0] is None:  # shares are constant wherever they are differentiable
            return
        (each,) = context.emit("mul", [context.grad, share], suffix="shared")
        attrs = SegmentAttrs(rows=context.type(x).shape[0])
        context.give(0, context.emit("segment_max_backward", [each, x, y, targets, sources], attrs)[0])

    def reference(self, attrs: SegmentAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, sources, targets = inputs
        counted = inside(sources, len(x)) & inside(targets, attrs.rows)
        rows, targets = x[sources[counted]], targets[counted]
        y = np.full((attrs.rows, x.shape[1]), -np.inf, x.dtype)
        np.maximum.at(y, targets, rows)
        count = np.zeros_like(y)
        np.add.at(count, targets, (rows == y[targets]) | np.isnan(rows))
        return y, np.divide(1, count, out=count, where=count > 0)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """With equal elements."""
        x, sources, _ = sample.inputs
        return (
            np.round(4 * rng.standard_normal(x.shape)) / 4,
            rng.integers(0, x.shape[0], sources.shape),
            self.draw_targets(sample, rng),
        )

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, x: tuple[int, int], entries: int, ordered: bool = False) -> Sample:
            ids = TensorType(shape=(entries,), dtype=DType.INT64)
            return Sample(SegmentAttrs(rows=rows, ordered=ordered), (TensorType(shape=x), ids, ids))

        unordered = (case(11, (7, 32), 40), case(5, (9, 70), 33), case(4, (3, 5), 9), case(30, (3, 1), 5))
        return (*unordered, case(30, (7, 32), 40, ordered=True), case(12, (12, 12), 50, ordered=True))


@register
class SegmentMaxBackward(_Segment):
    """dx[targets[i]] += dy[sources[i]] where x[targets[i]] equals y[sources[i]], over all entries i: the forward's, the
    other way. Inputs: dy [.., columns], which is each element's share of the gradient, x [rows, columns], y [..,
    columns], sources [entries], targets [entries]. Output: dx [rows, columns]. Indices as above."""

    name = "segment_max_backward"
    input_counts = (5,)
    output_names = ("dx",)
    differentiable = False
    first_entries = 3
    picked_from = 2
    integers: ClassVar[Mapping[int, DType]] = {3: DType.INT64, 4: DType.INT64}

    def infer(self, attrs: SegmentAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, x, y = inputs[:3]
        self.count(inputs)
        if dy.shape != y.shape or len(y.shape) != 2 or x.shape != (attrs.rows, y.shape[1]):
            problem = f"{dy.text()} and {y.text()} are no gradient and maxima of {x.text()}"
            raise misfit(problem, f"use [.., columns] twice and [{attrs.rows}, columns]")
        return (TensorType(shape=x.shape),)

    def reference(self, attrs: SegmentAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, x, y, sources, targets = inputs
        counted = inside(sources, len(y)) & inside(targets, attrs.rows)
        sources, targets = sources[counted], targets[counted]
        dx = np.zeros_like(x)
        np.add.at(dx, targets, np.where(x[targets] == y[sources], dy[sources], 0))
        return (dx,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """With elements that are equal."""
        dy, x, y, sources, _ = sample.inputs
        return (
            rng.standard_normal(dy.shape),
            *(rng.integers(0, 3, t.shape).astype(np.float64) for t in (x, y)),
            rng.integers(0, y.shape[0], sources.shape),
            self.draw_targets(sample, rng),
        )

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in SegmentMax().samples():
            x, sources, targets = s.inputs
            assert isinstance(s.attrs, SegmentAttrs)
            y = TensorType(shape=(s.attrs.rows, x.shape[1]))
            attrs = SegmentAttrs(rows=x.shape[0], ordered=s.attrs.ordered)
            found.append(Sample(attrs, (y, x, y, targets, sources)))
        return tuple(found)
