"""Embedding: rows of a table picked by int64 ids, its dense gradient, and plain SGD straight on the table.

The gradient's slices cut the table's columns: they never share an element, and additions happen in the order of the
positions whatever the number of slices.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes
from planner.units import Bytes


class EmbeddingAttrs(Attrs):
    """Ids equal to `padding_index` give their row no gradient; -1: there are none."""

    padding_index: int = -1


class EmbeddingGradAttrs(EmbeddingAttrs):
    """`entries`: rows of the table."""

    entries: int


class EmbeddingSgdAttrs(EmbeddingAttrs):
    lr: float


class _Embedding(Op):
    family = "embedding"
    input_counts = (2,)
    integers: ClassVar[Mapping[int, DType]] = {1: DType.INT64}
    input_layout = Layout.ROW_MAJOR


@register
class Embedding(_Embedding):
    """y[...] = table[ids[...]]. Inputs: table [entries, columns], ids. Slices cut the positions."""

    name = "embedding"
    attrs_type = EmbeddingAttrs

    def infer(self, attrs: EmbeddingAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        table, ids = inputs
        if len(table.shape) != 2:
            raise misfit(f"embedding cannot pick rows of {table.text()}", "use a table [entries, columns]")
        return (TensorType(shape=(*ids.shape, table.shape[1]), dtype=table.dtype),)

    def gradient(self, context: GradientContext) -> None:
        attrs = context.attrs
        assert isinstance(attrs, EmbeddingAttrs)
        table, ids = context.node.inputs
        full = EmbeddingGradAttrs(**attrs.model_dump(), entries=context.type(table).shape[0])
        context.give(0, context.emit("embedding_backward", [context.grad, ids], full)[0])

    def flops(self, signature: Signature) -> int:
        return 0

    def bytes_moved(self, signature: Signature) -> Bytes:
        return Bytes(2 * signature.outputs[0].bytes + signature.inputs[1].bytes)

    def picked(self, signature: Signature) -> Mapping[str, Bytes]:
        return {"in0": min(signature.inputs[0].bytes, signature.outputs[0].bytes)}

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "positions"): signature.inputs[1].elements}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        table, ids = signature.inputs
        lo, hi = split(ids.elements, mode.slices, index)
        columns = table.shape[1]
        return (reads("in0", 0, table.elements), reads("in1", lo, hi), writes("out0", lo * columns, hi * columns))

    def reference(self, attrs: EmbeddingAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0][inputs[1]],)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        table, ids = sample.inputs
        return (rng.standard_normal(table.shape), rng.integers(0, table.shape[0], ids.shape))

    def samples(self) -> Sequence[Sample]:
        def case(entries: int, columns: int, ids: tuple[int, ...], padding_index: int = -1) -> Sample:
            types = (TensorType(shape=(entries, columns)), TensorType(shape=ids, dtype=DType.INT64))
            return Sample(EmbeddingAttrs(padding_index=padding_index), types)

        return (case(11, 8, (33,)), case(7, 33, (4, 5), 2), case(100, 40, (3, 2, 2)), case(5, 1, (9,)))


class ByColumns(_Embedding):
    """What rows with ids are gathered to. Inputs: rows [..., columns], ids [...]. Slices cut the columns."""

    def flops(self, signature: Signature) -> int:
        return 2 * signature.inputs[0].elements

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "columns"): max(1, signature.inputs[0].shape[-1] // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        dy, ids = signature.inputs
        columns = dy.shape[-1]
        own = split(columns, mode.slices, index)
        operand, table = ("up0", signature.updates[0]) if signature.updates else ("out0", signature.outputs[0])
        return (
            Access("in0", False, (0, dy.elements // columns), own, columns),
            reads("in1", 0, ids.elements),
            Access(operand, True, (0, table.shape[0]), own, columns),
        )


@register
class EmbeddingBackward(ByColumns):
    """dtable[ids[i]] += dy[i], zero elsewhere. Output: dtable."""

    name = "embedding_backward"
    attrs_type = EmbeddingGradAttrs
    output_names = ("dtable",)

    def gradient(self, context: GradientContext) -> None:
        """Rows of the gradient; of the padding row none."""
        attrs = context.attrs
        assert isinstance(attrs, EmbeddingGradAttrs)
        if attrs.padding_index >= 0:
            raise misfit("embedding_backward with padding cannot be differentiated", "leave padding_index out")
        inputs = [context.grad, context.node.inputs[1]]
        context.give(0, context.emit("embedding", inputs, EmbeddingAttrs(), "backward")[0])

    def infer(self, attrs: EmbeddingGradAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        dy, ids = inputs
        if dy.shape[:-1] != ids.shape or not dy.shape:
            raise misfit(f"gradient {dy.text()} does not fit ids {ids.text()}", "one row of gradient per id")
        return (TensorType(shape=(attrs.entries, dy.shape[-1])),)

    def reference(self, attrs: EmbeddingGradAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, ids = inputs
        return (_scatter(attrs, dy, ids, attrs.entries),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, ids = sample.inputs
        assert isinstance(sample.attrs, EmbeddingGradAttrs)
        return (rng.standard_normal(dy.shape), rng.integers(0, sample.attrs.entries, ids.shape))

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in Embedding().samples():
            (dy,) = Embedding().infer(EmbeddingAttrs(), s.inputs)
            attrs = EmbeddingGradAttrs(**s.attrs.model_dump(), entries=s.inputs[0].shape[0])
            found.append(Sample(attrs, (dy, s.inputs[1])))
        return tuple(found)


@register
class EmbeddingSgdUpdate(ByColumns):
    """table[ids[i]] -= lr dy[i]: no dense gradient ever exists. Updates: table."""

    name = "embedding_sgd_update"
    attrs_type = EmbeddingSgdAttrs
    update_counts = (1,)

    def check(self, attrs: Attrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if len(updates[0].shape) != 2 or updates[0].shape[1:] != inputs[0].shape[-1:]:
            raise misfit(f"gradient {inputs[0].text()} does not fit table {updates[0].text()}", "use its columns")

    def infer(self, attrs: EmbeddingSgdAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        if inputs[0].shape[:-1] != inputs[1].shape or not inputs[0].shape:
            raise misfit(f"gradient {inputs[0].text()} does not fit {inputs[1].text()}", "one row of gradient per id")
        return ()

    def bytes_moved(self, signature: Signature) -> Bytes:
        return Bytes(3 * signature.inputs[0].bytes + signature.inputs[1].bytes)

    def picked(self, signature: Signature) -> Mapping[str, Bytes]:
        return {"up0": min(signature.updates[0].bytes, signature.inputs[0].bytes)}

    def reference(self, attrs: EmbeddingSgdAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        dy, ids, table = inputs
        return (table - attrs.lr * _scatter(attrs, dy, ids, table.shape[0]),)

    def draw(self, sample: Sample, rng: np.random.Generator) -> tuple[Array, ...]:
        dy, ids, table = sample.inputs
        picked = rng.integers(0, table.shape[0], ids.shape)
        return (rng.standard_normal(dy.shape), picked, rng.standard_normal(table.shape))

    def samples(self) -> Sequence[Sample]:
        found = []
        for s in Embedding().samples():
            (dy,) = Embedding().infer(EmbeddingAttrs(), s.inputs)
            attrs = EmbeddingSgdAttrs(**s.attrs.model_dump(), lr=0.1)
            found.append(Sample(attrs, (dy, s.inputs[1], s.inputs[0])))
        return tuple(found)


def _scatter(attrs: EmbeddingAttrs, dy: Array, ids: Array, entries: int) -> Array:
    table = np.zeros((entries, dy.shape[-1]), dy.dtype)
    rows, flat = dy.reshape(-1, dy.shape[-1]), ids.reshape(-1)
    counted = (flat != attrs.padding_index) & (flat >= 0) & (flat < entries)
    np.add.at(table, flat[counted], rows[counted])
    return table
