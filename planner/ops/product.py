"""What products of matrices have in common: c[b] = a[b] (m x k) * b[b] (k x n) of strided matrices.

`product` describes one in the words of MatMulShape (runtime/matmul.hpp), `slice_dim` says which of the product's
dimensions a mode cuts, and the accesses follow from the two.
"""

from collections.abc import Mapping
from typing import NamedTuple

from planner.graph.model import Layout
from planner.ops.base import (
    Access,
    Facts,
    Mode,
    Op,
    ScratchPart,
    Signature,
    reads,
    split,
    split_channels,
    writes,
)
from planner.ops.library import library_access, library_part, packed_part, packs
from planner.ops.tiles import Span, TileGrid, most_tiles, tile_grid


class Matrix(NamedTuple):
    """One dense operand of a product: strides count elements, a batch stride of 0 repeats the same matrix."""

    operand: str
    batch_stride: int
    row_stride: int
    column_stride: int


class Product(NamedTuple):
    """c[b] = a[b] (m x k) * b[b] (k x n), plus bias[n] where `bias` names an operand."""

    batch: int
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    c: Matrix
    bias: str = ""


class ProductOp(Op):
    family = "matmul"
    input_layout = Layout.ROW_MAJOR

    def product(self, signature: Signature) -> Product:
        raise NotImplementedError

    def slice_dim(self, mode: Mode) -> str:
        """The dimension of the product that the mode cuts, as SliceDim spells it: batch, rows (of c), channels
        (columns of c), tiles (of c)."""
        return "channels" if mode.dim == "columns" else mode.dim

    def flops(self, signature: Signature) -> int:
        p = self.product(signature)
        return 2 * p.batch * p.m * p.n * p.k

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        p = self.product(signature)
        found = {("onednn", "rows"): p.m}
        if p.batch > 1:
            found["onednn", "batch"] = p.batch
        else:
            found["onednn", "tiles"] = most_tiles(p.m, p.n)
        if p.n >= 32:
            found["onednn", "columns"] = p.n // 16
        return found

    def redundant(self, signature: Signature, mode: Mode) -> bool:
        return mode.dim == "tiles" and 1 in self.grid(signature, mode)

    def grid(self, signature: Signature, mode: Mode) -> TileGrid:
        p = self.product(signature)
        return tile_grid(p.m, p.n, mode.slices)

    def stage_count(self, signature: Signature, mode: Mode, facts: Facts) -> int:
        return 2 if packs(facts) else 1

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return (*packed_part(facts), *library_part(mode, facts))

    def parts(self, signature: Signature, mode: Mode, index: int) -> tuple[Span, Span, Span]:
        """The batches, rows and columns of c that a slice computes."""
        p = self.product(signature)
        batches, rows, columns = (0, p.batch), (0, p.m), (0, p.n)
        cut = self.slice_dim(mode)
        if cut == "batch":
            batches = split(p.batch, mode.slices, index)
        elif cut == "rows":
            rows = split(p.m, mode.slices, index)
        elif cut == "tiles":
            grid = self.grid(signature, mode)
            rows, columns = grid.rows(p.m, index), grid.columns(p.n, index)
        else:
            columns = split_channels(p.n, mode.slices, index)
        return batches, rows, columns

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        p = self.product(signature)
        if packs(facts) and stage == 0:
            elements = signature.inputs[int(p.b.operand[2:])].elements
            return (reads(p.b.operand, 0, elements), writes("packed", index, index + 1))
        batches, rows, columns = self.parts(signature, mode, index)
        plain = _box(p.b, False, (p.k, p.n), batches, (0, p.k), columns)
        return (
            _box(p.a, False, (p.m, p.k), batches, rows, (0, p.k)),
            reads("packed", 0, mode.slices) if packs(facts) else plain,
            _box(p.c, True, (p.m, p.n), batches, rows, columns),
            *((reads(p.bias, *columns),) if p.bias else ()),
            *library_access(index, facts),
        )


def _box(matrix: Matrix, write: bool, shape: Span, batches: Span, rows: Span, columns: Span) -> Access:
    """Part of a batch of dense matrices: some of them, or some rows, or columns, of all; or a rectangle of one."""
    (lines, width), line, column = shape, rows, columns
    if matrix.row_stride == 1 and matrix.column_stride != 1:
        (lines, width), line, column = (width, lines), columns, rows
    first, last = batches if matrix.batch_stride else (0, 1)
    if column != (0, width):
        return Access(matrix.operand, write, (first * lines + line[0], (last - 1) * lines + line[1]), column, width)
    if line != (0, lines):
        return Access(matrix.operand, write, (first, last), (line[0] * width, line[1] * width), lines * width)
    return Access(matrix.operand, write, (first * lines * width, last * lines * width))
