"""The largest element of every column among rows that share an id: what graph networks gather from neighbours."""

from collections.abc import Sequence

import numpy as np

from planner.graph.model import Attrs, DType, TensorType
from planner.ops.base import Array, Sample, misfit, register
from planner.ops.embedding import ByColumns


class SegmentAttrs(Attrs):
    """`entries`: rows of the result."""

    entries: int


@register
class SegmentMax(ByColumns):
    """y[ids[i]] = max(y[ids[i]], x[i]) over all rows; -infinity where an entry has none. Inputs: x [..., columns],
    ids [...]; others than 0 to `entries` - 1 are left out. Output: [entries, columns]."""

    name = "segment_max"
    attrs_type = SegmentAttrs
    differentiable = False

    def infer(self, attrs: SegmentAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x, ids = inputs
        if x.shape[:-1] != ids.shape or not x.shape:
            raise misfit(f"rows {x.text()} do not fit ids {ids.text()}", "one id per row")
        return (TensorType(shape=(attrs.entries, x.shape[-1])),)

    def reference(self, attrs: SegmentAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, ids = inputs
        y = np.full((attrs.entries, x.shape[-1]), -np.inf, x.dtype)
        rows, flat = x.reshape(-1, x.shape[-1]), ids.reshape(-1)
        counted = (flat >= 0) & (flat < attrs.entries)
        np.maximum.at(y, flat[counted], rows[counted])
        return (y,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        x, ids = sample.inputs
        assert isinstance(sample.attrs, SegmentAttrs)
        return (rng.standard_normal(x.shape), rng.integers(0, sample.attrs.entries, ids.shape))

    def samples(self) -> Sequence[Sample]:
        def case(entries: int, columns: int, ids: tuple[int, ...]) -> Sample:
            types = (TensorType(shape=(*ids, columns)), TensorType(shape=ids, dtype=DType.INT64))
            return Sample(SegmentAttrs(entries=entries), types)

        return (case(11, 8, (33,)), case(7, 33, (4, 5)), case(100, 40, (3, 2)), case(5, 1, (9,)))
