"""Matrices of heads that lie within other tensors, in the order in which linear layers write and read them.

[images, rows, 3, heads, width]      queries, keys and values of one projection: three views of one tensor
[rows, images, heads, width]         sequences first
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import NamedTuple

from numpy.lib.stride_tricks import as_strided

from planner.graph.model import Layout, TensorType
from planner.ops.base import Access, Array

Span = tuple[int, int]


class HeadView(NamedTuple):
    """Matrices [..., heads, rows, width] within a tensor: which element is the first, and how many there are from one
    entry of the batch (of all dimensions before the heads together), head and row to the next. A row is contiguous."""

    shape: tuple[int, ...]
    first: int
    batch: int
    head: int
    row: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Entries of the batch, heads, rows, width."""
        heads, rows, width = self.shape[-3:]
        return prod(self.shape[:-3]), heads, rows, width

    @property
    def in_order(self) -> bool:
        """Whether the matrices lie one after the other, as in a tensor of nothing else."""
        steps = zip(self.sizes, self[2:], whole(self.shape)[2:], strict=False)
        return self.first == 0 and all(extent == 1 or step == wanted for extent, step, wanted in steps)

    def of(self, x: Array) -> Array:
        """What the view shows of a tensor: the same memory, as [batch, heads, rows, width]."""
        assert x.flags.c_contiguous
        steps = (self.batch, self.head, self.row, 1)
        return as_strided(x.reshape(-1)[self.first :], self.sizes, [s * x.itemsize for s in steps])

    def element(self, batch: int, head: int, row: int) -> int:
        return self.first + batch * self.batch + head * self.head + row * self.row


def whole(shape: Sequence[int]) -> HeadView:
    """The view of a tensor of these matrices alone, one after the other; fewer than three dimensions are filled up."""
    full = (*(1,) * (3 - len(shape)), *shape)
    heads, rows, width = full[-3:]
    return HeadView(full, 0, heads * rows * width, rows * width, width)


def seen(view: HeadView | None, type_: TensorType) -> TensorType:
    """The type of the matrices that a view shows of a tensor; without a view it is these matrices."""
    return type_ if view is None else TensorType(shape=view.shape, dtype=type_.dtype)


def fill(views: Sequence[HeadView], type_: TensorType) -> bool:
    """Whether every element of the tensor is in one of the views, and once: views side by side, which differ in where
    they begin."""
    first = views[0]
    if type_.layout is not Layout.ROW_MAJOR or any(len(v.shape) < 3 or min(v[1:]) < 0 for v in views):
        return False
    if any(v._replace(first=first.first) != first for v in views):
        return False
    batch, heads, rows, width = first.sizes
    begins = sorted(v.first for v in views)
    between = begins[1] if len(begins) > 1 else 0
    if begins != [i * between for i in range(len(begins))]:
        return False
    steps = [(first.batch, batch), (first.head, heads), (first.row, rows), (between, len(views))]
    run = width
    for step, extent in sorted(s for s in steps if s[1] > 1):
        if step != run:
            return False
        run *= extent
    return run == type_.elements


def hull(views: Sequence[HeadView], heads: Span, rows: Span) -> Span:
    """The smallest contiguous span of elements that holds these rows of these heads, counted over all entries of the
    batch."""
    each = views[0].sizes[1]
    if heads[0] >= heads[1] or rows[0] >= rows[1]:
        return (0, 0)
    ends = [(heads[0] // each, heads[0] % each), ((heads[1] - 1) // each, (heads[1] - 1) % each)]
    if ends[0][0] != ends[1][0]:
        ends = [(ends[0][0], 0), (ends[1][0], each - 1)]
    lo = min(v.element(*ends[0], rows[0]) for v in views)
    return lo, max(v.element(*ends[1], rows[1] - 1) for v in views) + views[0].sizes[3]


def rectangles(operand: str, views: Sequence[HeadView], heads: Span, rows: Span) -> Iterator[Access]:
    """Writes of these rows of these heads, counted over all entries of the batch, in all of the views, which lie side
    by side. Exact, and of one width for a tensor: a line is a row of one of the views and what lies before the next."""
    view = views[0]
    _, each, extent, width = view.sizes
    line = view.row if extent > 1 else width
    first, last = min(v.first for v in views), max(v.first for v in views)
    between = (last - first) // max(1, len(views) - 1)
    for batch, own in _boxes(heads, each):
        run, lines, begin = width, rows[1] - rows[0], first + rows[0] * line
        apart: list[Sequence[int]] = []
        dims = [(*own, view.head), (*batch, view.batch), (0, len(views), between)]
        for lo, hi, step in sorted(dims, key=lambda d: d[2]):
            begin += lo * step
            if hi - lo == 1:
                continue
            if step == run < line:
                run *= hi - lo
            elif step == lines * line:
                lines *= hi - lo
            else:
                apart.append(range(0, (hi - lo) * step, step))
        for offsets in product(*apart):
            row, column = divmod(begin + sum(offsets), line)
            yield Access(operand, True, (row, row + lines), (column, column + run), line)


def _boxes(heads: Span, each: int) -> Iterator[tuple[Span, Span]]:
    """A range of heads as entries of the batch and heads of each of these: those between the first and the last entry
    have all of theirs."""
    (first, lo), (last, hi) = divmod(heads[0], each), divmod(heads[1], each)
    if first == last:
        if lo < hi:
            yield (first, first + 1), (lo, hi)
        return
    if lo:
        yield (first, first + 1), (lo, each)
        first += 1
    if first < last:
        yield (first, last), (0, each)
    if hi:
        yield (last, last + 1), (0, hi)


def shown(view: HeadView | None, x: Array) -> Array:
    """What a view shows of a tensor, in the tensor's memory, as [batch, heads, rows, width]; without one the tensor."""
    return x if view is None else view.of(x)
