"""The entries of a sparse matrix in the order of their targets: what products of matrices that are an input begin with.

What ops/sparse.py and ops/segment.py do with entries is quicker in that order (graph/entries.py); that of constants is
known before.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.model import Attrs, DType, Layout, TensorType
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
    writes,
)
from planner.ops.sparse import count_of
from planner.units import Bytes

COUNTER = 4
"""Bytes of a row's counter."""


class SortEntriesAttrs(Attrs):
    """`source_rows`, `target_rows`: what sources and targets are rows of."""

    source_rows: int
    target_rows: int


@register
class SortEntries(Op):
    """Inputs: sources [entries], targets [entries]. Outputs, each [entries]: both in the order of the targets, where
    equal ones keep theirs; places, which entry is the i-th then; ranks, which one entry i is then. Targets below 0 come
    first and those beyond the last row come last; these are reported, as are sources outside of their matrix.

    Places are counted (Knuth, The art of computer programming 3, 5.2), by one slice."""

    name = "sort_entries"
    family = "entries"
    attrs_type = SortEntriesAttrs
    input_counts = (2,)
    output_names = ("sources", "targets", "places", "ranks")
    input_layout = Layout.ROW_MAJOR
    differentiable = False
    integers: ClassVar[Mapping[int, DType]] = {0: DType.INT64, 1: DType.INT64}

    def infer(self, attrs: SortEntriesAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        count_of(*inputs)
        if min(attrs.source_rows, attrs.target_rows) < 1:
            raise misfit("sort_entries needs rows to sort entries of", "give source_rows and target_rows of 1 or more")
        return (inputs[0],) * 4

    def flops(self, signature: Signature) -> int:
        """Steps, each about as long as an addition."""
        return 8 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "whole"): 1}

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        """Where the entries of each row go, and of what is below or beyond the rows."""
        assert isinstance(signature.attrs, SortEntriesAttrs)
        return (ScratchPart("starts", Bytes(COUNTER * (signature.attrs.target_rows + 2))),)

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        count = signature.inputs[0].elements
        given = [reads(f"in{i}", 0, count) for i in range(2)]
        return (*given, *(writes(f"out{i}", 0, count) for i in range(4)), writes("starts", 0, 1))

    def reference(self, attrs: SortEntriesAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        sources, targets = inputs
        places = np.argsort(np.clip(targets, -1, attrs.target_rows), kind="stable")
        ranks = np.empty_like(places)
        ranks[places] = np.arange(len(places))
        return sources[places], targets[places], places, ranks

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        assert isinstance(sample.attrs, SortEntriesAttrs)
        shape, attrs = sample.inputs[0].shape, sample.attrs
        return rng.integers(0, attrs.source_rows, shape), rng.integers(0, attrs.target_rows, shape)

    def samples(self) -> Sequence[Sample]:
        def case(sources: int, targets: int, entries: int) -> Sample:
            ids = TensorType(shape=(entries,), dtype=DType.INT64)
            return Sample(SortEntriesAttrs(source_rows=sources, target_rows=targets), (ids, ids))

        return (case(7, 11, 40), case(3, 900, 77), case(5, 1, 9), case(1, 2, 1))
