"""Products of sparse matrices with dense ones: what graph networks send along their edges and add up at the nodes.

A sparse matrix is its entries, in any order: entry i stands in row `targets[i]` and column `sources[i]`. `spmm` is such
a matrix times a dense one, `sddmm` those elements of a product of dense matrices where the sparse one has entries; each
is the other's gradient. Messages along edges are therefore no values of their own. Every entry may have several
weights, its heads, each for an equal part of the columns.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import (
    Access,
    Array,
    Facts,
    Mode,
    Op,
    Sample,
    Signature,
    misfit,
    reads,
    register,
    split,
    split_channels,
    writes,
)
from planner.units import Bytes

LINE = 16
"""Floats of a cache line."""


class EntriesAttrs(Attrs):
    """`ordered`: entries are in the order of their targets (graph/entries.py)."""

    ordered: bool = False


class ByTargetAttrs(EntriesAttrs):
    """`rows`: of the sparse matrix and of the result. If entries are ordered, every row of it is done at once."""

    rows: int


class SpmmAttrs(ByTargetAttrs):
    """Nothing else."""


class SddmmAttrs(EntriesAttrs):
    """Where entries are ordered results are the same, a row of b is then read once."""

    heads: int = 1


def count_of(sources: TensorType, targets: TensorType) -> int:
    """How many entries have these. UserError: they are no pairs."""
    if len(sources.shape) != 1 or sources.shape != targets.shape:
        raise misfit(f"sources {sources.text()} do not fit targets {targets.text()}", "one of each per entry")
    return sources.shape[0]


class SparseOp(Op):
    family = "sparse"
    input_layout = Layout.ROW_MAJOR
    first_entries: ClassVar[int]
    """Operands before this one are dense matrices; it holds the entries' sources, the next one their targets."""
    picked_from: ClassVar[int] = 0
    """The operand that sources are rows of."""

    def measured_with(self, signature: Signature) -> Mapping[int, Array]:
        """Entries in order: as many in every row."""
        assert isinstance(signature.attrs, EntriesAttrs)
        targets = self.first_entries + 1
        entries, rows = signature.inputs[targets].elements, self.target_rows(signature.inputs, signature.outputs)
        return {targets: np.arange(entries) * rows // entries} if signature.attrs.ordered else {}

    def target_rows(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        """Of what targets pick."""
        return outputs[0].shape[0]

    def count(self, inputs: Sequence[TensorType]) -> int:
        """Of the entries."""
        return count_of(*inputs[self.first_entries : self.first_entries + 2])


class ByTarget(SparseOp):
    """What entries gather in the rows of their targets.

    Slices cut the columns, which is as much work for each whatever the matrix. Where one has less than two cache lines
    of them, they cut the rows, if entries are in their order."""

    def flops(self, signature: Signature) -> int:
        return 2 * signature.inputs[self.first_entries].elements * signature.outputs[0].shape[1]

    def bytes_moved(self, signature: Signature) -> Bytes:
        """Of every dense matrix a row is read for every entry."""
        dense = sum(self._read(signature, i) for i in range(self.first_entries))
        entries = sum(t.bytes for t in signature.inputs[self.first_entries :])
        return Bytes(dense + entries + sum(t.bytes for t in signature.outputs))

    def picked(self, signature: Signature) -> Mapping[str, Bytes]:
        dense = range(self.first_entries)
        return {f"in{i}": Bytes(min(signature.inputs[i].bytes, self._read(signature, i))) for i in dense}

    def _read(self, signature: Signature, operand: int) -> int:
        x = signature.inputs[operand]
        return signature.inputs[self.first_entries].elements * x.shape[1] * x.dtype.itemsize

    def draw_targets(self, sample: Sample, rng: np.random.Generator) -> Array:
        assert isinstance(sample.attrs, ByTargetAttrs)
        drawn = rng.integers(0, sample.attrs.rows, sample.inputs[self.first_entries + 1].shape)
        return np.sort(drawn) if sample.attrs.ordered else drawn

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        assert isinstance(signature.attrs, ByTargetAttrs)
        rows, columns = signature.outputs[0].shape
        if signature.attrs.ordered and columns < 2 * LINE:
            return {("loops", "rows"): rows}
        return {("loops", "columns"): max(1, columns // LINE)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        rows, columns = signature.outputs[0].shape
        given = dict(enumerate(signature.inputs))
        dense = [given.pop(i) for i in range(self.first_entries)]
        entries = [reads(f"in{i}", 0, t.elements) for i, t in given.items()]
        results = [f"out{i}" for i in range(len(signature.outputs))]
        if mode.dim == "rows":
            lo, hi = split(rows, mode.slices, index)
            found = [reads(f"in{i}", 0, t.elements) for i, t in enumerate(dense)]
            return (*found, *entries, *(writes(y, lo * columns, hi * columns) for y in results))
        own = split_channels(columns, mode.slices, index)
        found = [Access(f"in{i}", False, (0, t.shape[0]), own, columns) for i, t in enumerate(dense)]
        return (*found, *entries, *(Access(y, True, (0, rows), own, columns) for y in results))


@register
class Spmm(ByTarget):
    """y[targets[i]] += weights[i] x[sources[i]] over all entries i, in their order. Inputs: x [columns of the sparse
    matrix, columns], sources [entries], targets [entries], weights [entries, heads] or none (all 1). Output: y [rows,
    columns]. A target outside of y is left out, as is a source outside of x; the executor reports both."""

    name = "spmm"
    attrs_type = SpmmAttrs
    input_counts = (3, 4)
    first_entries = 1
    integers: ClassVar[Mapping[int, DType]] = {1: DType.INT64, 2: DType.INT64}

    def infer(self, attrs: SpmmAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        x = inputs[0]
        if len(x.shape) != 2:
            raise misfit(f"spmm cannot pick rows of {x.text()}", "use a matrix [rows, columns]")
        entries = self.count(inputs)
        for weights in inputs[3:]:
            if len(weights.shape) != 2 or weights.shape[0] != entries or x.shape[1] % weights.shape[1]:
                fix = f"use [{entries}, heads], with heads that divide {x.shape[1]} columns"
                raise misfit(f"weights {weights.text()} do not fit {x.text()} and {inputs[1].text()}", fix)
        return (TensorType(shape=(attrs.rows, x.shape[1])),)

    def gradient(self, context: GradientContext) -> None:
        x, sources, targets, *weights = context.node.inputs
        rows = context.type(x).shape[0]
        if context.needs(0):
            turned = [context.grad, targets, sources, *weights]
            context.give(0, context.emit("spmm", turned, SpmmAttrs(rows=rows))[0])
        if weights and context.needs(3):
            attrs = SddmmAttrs(heads=context.type(weights[0]).shape[1])
            products = context.emit("sddmm", [x, context.grad, sources, targets], attrs, "backward_weights", of=3)
            context.give(3, products[0])

    def reference(self, attrs: SpmmAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, sources, targets, *weights = inputs
        y = np.zeros((attrs.rows, x.shape[1]), x.dtype)
        counted = inside(sources, len(x)) & inside(targets, attrs.rows)
        rows = x[sources[counted]]
        for w in weights:
            rows = rows * np.repeat(w[counted], x.shape[1] // w.shape[1], axis=1)
        np.add.at(y, targets[counted], rows)
        return (y,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        x, sources, _, *weights = sample.inputs
        return (
            rng.standard_normal(x.shape),
            rng.integers(0, x.shape[0], sources.shape),
            self.draw_targets(sample, rng),
            *(rng.standard_normal(w.shape) for w in weights),
        )

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, x: tuple[int, int], entries: int, heads: int = 0, ordered: bool = False) -> Sample:
            ids = TensorType(shape=(entries,), dtype=DType.INT64)
            weights = (TensorType(shape=(entries, heads)),) if heads else ()
            attrs = SpmmAttrs(rows=rows, ordered=ordered)
            return Sample(attrs, (TensorType(shape=x), ids, ids, *weights))

        return (
            case(11, (7, 32), 40),
            case(5, (9, 40), 33, 1),
            case(12, (12, 96), 50, 3),
            case(4, (3, 5), 9, 5),
            case(30, (7, 32), 40, ordered=True),
            case(12, (12, 96), 50, 3, ordered=True),
            case(30, (12, 12), 25, 2, ordered=True),
        )


@register
class Sddmm(SparseOp):
    """y[i, h] = the part of a[sources[i]] that head h has, times that of b[targets[i]]. Inputs: a [.., columns], b [..,
    columns], sources [entries], targets [entries]. Output: y [entries, heads]; 0 where an index is outside of its
    matrix, which the executor reports. Slices cut the entries."""

    name = "sddmm"
    attrs_type = SddmmAttrs
    input_counts = (4,)
    first_entries = 2
    integers: ClassVar[Mapping[int, DType]] = {2: DType.INT64, 3: DType.INT64}

    def infer(self, attrs: SddmmAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b = inputs[:2]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[1] != b.shape[1]:
            raise misfit(f"sddmm cannot multiply rows of {a.text()} and {b.text()}", "give both as many columns")
        entries = self.count(inputs)
        if attrs.heads < 1 or a.shape[1] % attrs.heads:
            raise misfit(f"{a.shape[1]} columns do not divide into {attrs.heads} heads", "use a divisor")
        return (TensorType(shape=(entries, attrs.heads)),)

    def gradient(self, context: GradientContext) -> None:
        a, b, sources, targets = context.node.inputs
        for index, other, there, here in ((0, b, targets, sources), (1, a, sources, targets)):
            if context.needs(index):
                attrs = SpmmAttrs(rows=context.type(context.node.inputs[index]).shape[0])
                context.give(index, context.emit("spmm", [other, there, here, context.grad], attrs, of=index)[0])

    def flops(self, signature: Signature) -> int:
        return 2 * signature.inputs[2].elements * signature.inputs[0].shape[1]

    def bytes_moved(self, signature: Signature) -> Bytes:
        """Two rows are read for every entry."""
        a, b, sources, targets = signature.inputs
        rows = sources.elements * a.shape[1] * (a.dtype.itemsize + b.dtype.itemsize)
        return Bytes(rows + sources.bytes + targets.bytes + signature.outputs[0].bytes)

    def picked(self, signature: Signature) -> Mapping[str, Bytes]:
        rows = signature.inputs[2].elements * signature.inputs[0].shape[1]
        return {f"in{i}": Bytes(min(t.bytes, rows * t.dtype.itemsize)) for i, t in enumerate(signature.inputs[:2])}

    def target_rows(self, inputs: Sequence[TensorType], outputs: Sequence[TensorType]) -> int:
        return inputs[1].shape[0]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "entries"): signature.inputs[2].elements}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        a, b, sources, _ = signature.inputs
        heads = signature.outputs[0].shape[1]
        lo, hi = split(sources.elements, mode.slices, index)
        dense = (reads("in0", 0, a.elements), reads("in1", 0, b.elements))
        return (*dense, reads("in2", lo, hi), reads("in3", lo, hi), writes("out0", lo * heads, hi * heads))

    def reference(self, attrs: SddmmAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, sources, targets = inputs
        y = np.zeros((len(sources), attrs.heads), a.dtype)
        counted = inside(sources, len(a)) & inside(targets, len(b))
        products = a[sources[counted]] * b[targets[counted]]
        y[counted] = products.reshape(len(products), attrs.heads, -1).sum(axis=2)
        return (y,)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        a, b, sources, targets = sample.inputs
        dense = (rng.standard_normal(a.shape), rng.standard_normal(b.shape))
        return (*dense, rng.integers(0, a.shape[0], sources.shape), rng.integers(0, b.shape[0], targets.shape))

    def samples(self) -> Sequence[Sample]:
        def case(a: tuple[int, int], b: tuple[int, int], entries: int, heads: int = 1) -> Sample:
            ids = TensorType(shape=(entries,), dtype=DType.INT64)
            return Sample(SddmmAttrs(heads=heads), (TensorType(shape=a), TensorType(shape=b), ids, ids))

        return (case((7, 32), (11, 32), 40), case((9, 40), (9, 40), 33), case((12, 96), (5, 96), 50, 3))


def inside(ids: Array, extent: int) -> Array:
    """Which ids are rows of a matrix with so many."""
    return np.asarray((ids >= 0) & (ids < extent))
