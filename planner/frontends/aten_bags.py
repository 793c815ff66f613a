"""ATen's bags of embeddings: sums, means or maxima of the rows of a table that ids name, bag by bag."""

from collections.abc import Sequence
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_order import cumsum, evenly
from planner.frontends.aten_picks import added
from planner.frontends.aten_segments import largest_rows
from planner.ops.embedding import EmbeddingAttrs


@lowers("_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
def _embedding_bag(
    c: Context,
    table: Any,
    ids: Any,
    offsets: Any,
    scale: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Any = None,
    include_last: bool = False,
    padding_index: int | None = -1,
) -> Any:
    """A bag is the ids from its offset to the next one; those of the padding's row count for nothing."""
    require(not scale, "scale_grad_by_freq")
    table, ids = c.val(table), c.val(ids)
    if c.node.target._overloadname == "padding_idx":  # which counts from the end, where it is negative
        padding_index = None if padding_index is None else padding_index % c.shape(table)[0]
    padding = -1 if padding_index is None else padding_index
    rows = c.op("embedding", table, ids, attrs=EmbeddingAttrs(padding_index=padding))
    if weights is not None:
        rows = c.op("mul", rows, c.unsqueeze(c.val(weights), 1))
    bags = _Bags(c, offsets, c.shape(ids)[0], include_last)
    counted = c.unsqueeze(c.compare("ne", ids, padding), 1) if padding >= 0 else None
    if mode == 2:
        return (bags.largest(rows, counted), None, None, None)
    y = bags.sum(rows if counted is None else c.op("mul", rows, counted))
    if mode == 1 and bags.size and counted is None:
        y = c.scale(y, 1 / bags.size)
    elif mode == 1:
        y = c.op("div", y, c.clamp(bags.sum(counted or c.fill((c.shape(ids)[0], 1), 1.0)), 1.0, None))
    return (y, None, None, None)


class _Bags:
    """Which of `total` rows are in which bag; `size` of them in every bag, or 0: there are larger and smaller ones."""

    def __init__(self, c: Context, offsets: Any, total: int, include_last: bool) -> None:
        self._c = c
        self._ends = c.shape_of(offsets)[0]
        """With `include_last` one more than bags: what is behind it is in no bag."""
        self._count = self._ends - bool(include_last)
        self.size = _size(offsets.tolist(), self._count, total) if c.is_constant(offsets) else 0
        if not c.is_constant(offsets):
            begun = added(c, offsets, c.fill((self._ends, 1), 1.0), total + 1, 1)  # empty bags may begin at the end
            begun = cumsum(c, c.reshape(c.slice(begun, 0, 0, total), (total,)), 0)
            self._of_rows: Any = c.to_whole(c.shift(begun, -1))
        elif not self.size:
            self._of_rows = c.torch.bucketize(c.torch.arange(total), offsets.long(), right=True) - 1

    def sum(self, rows: str) -> str:
        """(total, width) -> (bags, width)."""
        c, width = self._c, self._c.shape(rows)[1]
        if self.size:
            return c.reduce("reduce_sum", c.reshape(rows, (self._count, self.size, width)), [1], False)
        return c.slice(added(c, self._of_rows, rows, self._ends, width), 0, 0, self._count)

    def largest(self, rows: str, counted: str | None) -> str:
        """(total, width) -> (bags, width): equal elements share the gradient, as those of a row that a bag has twice.
        Bags of none are zeros: rows that do not count are in one behind all others."""
        c, width = self._c, self._c.shape(rows)[1]
        if self.size and counted is None:
            return evenly(c, c.reshape(rows, (self._count, self.size, width)), [1], False, 1)
        ids = c.torch.arange(c.shape(rows)[0]) // self.size if self.size else self._of_rows
        if counted is not None:
            ids = c.chosen_whole(c.reshape(counted, c.shape_of(ids)), ids, c.torch.tensor(self._ends))
        return c.slice(largest_rows(c, rows, c.val(ids), self._ends + 1), 0, 0, self._count)


def _size(offsets: Sequence[int], count: int, total: int) -> int:
    """How many rows every bag has, if they are as many in all and no row is left; else 0."""
    size = total // max(1, count)
    return size if [*offsets, total][: count + 1] == [bag * size for bag in range(count + 1)] else 0
