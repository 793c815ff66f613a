"""Products of rows with one of several matrices, group by group, as in mixtures of experts (Shazeer et al.,
"Outrageously large neural networks", 2017; PyTorch's grouped_mm).

Rows are sorted by group, and those of group g end at `ends[g]`. Which matrix a row meets is data; how much is computed
of it is not. So slices are equal work under every routing, and a plan need not know it.
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
    ScratchPart,
    Signature,
    misfit,
    reads,
    register,
    split,
    writes,
)
from planner.units import Bytes

ROWS, DEPTH, COLUMNS = 126, 256, 512
"""Of both sides of a product, what is copied at once (runtime/grouped.hpp)."""
GAP = 16


class GroupedAttrs(Attrs):
    """`transpose_b`: swaps the last two dimensions of the matrices."""

    transpose_b: bool = False


class _Grouped(Op):
    family = "grouped"
    input_counts = (3,)
    input_layout = Layout.ROW_MAJOR
    integers: ClassVar[Mapping[int, DType]] = {2: DType.INT64}

    def sizes(self, signature: Signature) -> tuple[int, int, int]:
        """Rows, depth and columns of a group's product, were all rows its own."""
        raise NotImplementedError

    def floats(self, signature: Signature) -> int:
        """Of scratch that a slice needs."""
        rows, depth, columns = self.sizes(signature)
        at_once = min(DEPTH, depth)
        return (min(ROWS, rows) + 6) * (at_once + GAP) + at_once * min(COLUMNS, (columns + 15) // 16 * 16)

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (ScratchPart("sides", Bytes(4 * self.floats(signature) * mode.slices)),)

    def flops(self, signature: Signature) -> int:
        rows, depth, columns = self.sizes(signature)
        return 2 * rows * depth * columns

    def measured_with(self, signature: Signature) -> Mapping[int, Array]:
        """Groups are as large as each other."""
        groups = signature.inputs[2].shape[0]
        return {2: np.arange(1, groups + 1) * signature.inputs[0].shape[0] // groups}

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        """Some groups have no rows, and some rows no group."""
        rows, groups = sample.inputs[0].shape[0], sample.inputs[2].shape[0]
        ends = np.sort(rng.integers(0, rows + 1, groups))
        return (*(rng.standard_normal(t.shape) for t in sample.inputs[:2]), ends)


@register
class GroupedMatmul(_Grouped):
    """y[r] = a[r] b[g] of the group g that row r is in; rows of no group are 0.

    Inputs: a [rows, depth], b [groups, depth, columns], int64 ends [groups]. Slices cut the rows.
    """

    name = "grouped_matmul"
    attrs_type = GroupedAttrs

    def infer(self, attrs: GroupedAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b, ends = inputs
        if len(a.shape) != 2 or len(b.shape) != 3 or ends.shape != b.shape[:1]:
            raise misfit(
                f"grouped_matmul cannot multiply {a.text()} by {b.text()} up to {ends.text()}",
                "use rows [rows, depth], matrices [groups, depth, columns] and one end per group",
            )
        depth, columns = b.shape[:0:-1] if attrs.transpose_b else b.shape[1:]
        if depth != a.shape[1]:
            raise misfit(f"grouped_matmul: {a.text()} and {b.text()} share no inner dimension", "transpose b")
        return (TensorType(shape=(a.shape[0], columns), dtype=a.dtype),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, GroupedAttrs)
        a, b, ends = context.node.inputs
        if context.needs(0):
            turned = GroupedAttrs(transpose_b=not attrs.transpose_b)
            context.give(0, context.emit("grouped_matmul", [context.grad, b, ends], turned, "backward_a", of=0)[0])
        if context.needs(1):
            sides = [context.grad, a] if attrs.transpose_b else [a, context.grad]
            context.give(1, context.emit("grouped_outer", [*sides, ends], None, "backward_b", of=1)[0])

    def sizes(self, signature: Signature) -> tuple[int, int, int]:
        a, y = signature.inputs[0], signature.outputs[0]
        return (*a.shape, y.shape[1])  # type: ignore[return-value]

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "rows"): signature.inputs[0].shape[0]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        rows, depth, columns = self.sizes(signature)
        lo, hi = split(rows, mode.slices, index)
        return (
            reads("in0", lo * depth, hi * depth),
            reads("in1", 0, signature.inputs[1].elements),
            reads("in2", 0, signature.inputs[2].elements),
            writes("out0", lo * columns, hi * columns),
            writes("sides", index, index + 1),
        )

    def reference(self, attrs: GroupedAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, ends = inputs
        b = b.swapaxes(1, 2) if attrs.transpose_b else b
        y = np.zeros((a.shape[0], b.shape[2]), a.dtype)
        for matrix, (start, end) in zip(b, _spans(ends, a.shape[0]), strict=True):
            y[start:end] = a[start:end] @ matrix
        return (y,)

    def samples(self) -> Sequence[Sample]:
        def case(rows: int, groups: int, depth: int, columns: int, transpose_b: bool) -> Sample:
            b = (groups, columns, depth) if transpose_b else (groups, depth, columns)
            return Sample(GroupedAttrs(transpose_b=transpose_b), _types((rows, depth), b, groups))

        return (
            case(11, 3, 7, 5, False),
            case(33, 4, 40, 48, True),
            case(20, 2, 300, 90, False),
            case(300, 3, 20, 530, True),
            case(1, 5, 16, 64, False),
        )


@register
class GroupedOuter(_Grouped):
    """y[g] = the sum over the rows r of group g of a[r]' b[r]: the gradient of a grouped product's matrices.

    Inputs: a [rows, m], b [rows, n], int64 ends [groups]. Output: [groups, m, n]. Slices cut a's columns.
    """

    name = "grouped_outer"

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        a, b, ends = inputs
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[0] or len(ends.shape) != 1:
            raise misfit(
                f"grouped_outer cannot multiply {a.text()} by {b.text()} up to {ends.text()}",
                "use as many rows on both sides, and one end per group",
            )
        return (TensorType(shape=(ends.shape[0], a.shape[1], b.shape[1]), dtype=a.dtype),)

    def gradient(self, context: GradientContext) -> None:
        a, b, ends = context.node.inputs
        for position, (rows, transposed) in enumerate(((b, True), (a, False))):
            if context.needs(position):
                attrs = GroupedAttrs(transpose_b=transposed)
                made = context.emit("grouped_matmul", [rows, context.grad, ends], attrs, of=position)
                context.give(position, made[0])

    def sizes(self, signature: Signature) -> tuple[int, int, int]:
        a, b, _ = signature.inputs
        return (a.shape[1], a.shape[0], b.shape[1])

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "columns"): signature.inputs[0].shape[1]}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        (rows, m), (_, n) = signature.inputs[0].shape, signature.inputs[1].shape
        own = split(m, mode.slices, index)
        groups = signature.outputs[0].shape[0]
        return (
            Access("in0", False, (0, rows), own, m),
            reads("in1", 0, rows * n),
            reads("in2", 0, groups),
            Access("out0", True, (0, groups), (own[0] * n, own[1] * n), m * n),
            writes("sides", index, index + 1),
        )

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b, ends = inputs
        return (np.stack([a[start:end].T @ b[start:end] for start, end in _spans(ends, a.shape[0])]),)

    def samples(self) -> Sequence[Sample]:
        cases = ((11, 3, 7, 5), (33, 4, 40, 48), (300, 2, 13, 90), (20, 3, 260, 530), (1, 5, 16, 64))
        return tuple(Sample(Attrs(), _types((rows, m), (rows, n), groups)) for rows, groups, m, n in cases)


def _types(a: tuple[int, ...], b: tuple[int, ...], groups: int) -> tuple[TensorType, ...]:
    return (TensorType(shape=a), TensorType(shape=b), TensorType(shape=(groups,), dtype=DType.INT64))


def _spans(ends: Array, rows: int) -> Sequence[tuple[int, int]]:
    """Where groups begin and end; an end before the last one, or behind all rows, is there."""
    reached = np.maximum.accumulate(np.clip(ends, 0, rows))
    return tuple(zip([0, *reached[:-1].tolist()], reached.tolist(), strict=True))
