"""ATen's operators that reduce rows, or elements, which share an index, with what was there: sums, means, extremes,
products."""

from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_order import doubling
from planner.frontends.aten_picks import added, in_front, places_of, read, scattered_rows, with_what_was_there
from planner.graph.model import Role
from planner.ops.embedding import EmbeddingAttrs
from planner.ops.order import ArgsortAttrs
from planner.ops.segment import SegmentAttrs


@lowers("scatter_reduce")
def _scatter_reduce(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: str, include: bool = True) -> str:
    x = c.val(x)
    shape = c.shape(x) or (1,)
    ids, rows, entries, width = scattered_rows(c, axis % len(shape), index, c.val(source), shape)
    return c.reshape(_reduced(c, c.reshape(x, (entries, width)), ids, rows, reduce, include), c.shape(x))


@lowers("index_reduce")
def _index_reduce(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: str, include: bool = True) -> str:
    x, source = c.val(x), c.val(source)
    shape = c.shape(x)
    order = in_front([axis % len(shape)], len(shape))
    ids = c.reshape(c.val(places_of(c, [index], [shape[axis]])), (-1,))
    own, rows = (
        c.reshape(c.permute(v, order), (extent, -1)) for v, extent in ((x, shape[axis]), (source, c.shape(ids)[0]))
    )
    y = c.reshape(_reduced(c, own, ids, rows, reduce, include), (shape[a] for a in order))
    return c.permute(y, (order.index(a) for a in range(len(shape))))


@lowers("index_add")
def _index_add(c: Context, x: Any, axis: int, index: Any, source: Any, alpha: float = 1) -> str:
    if 0 in c.shape_of(index):
        return c.val(x)
    return _index_reduce(c, x, axis, index, c.scale(c.val(source), float(alpha)), "sum")


def _reduced(c: Context, x: str, ids: str, rows: str, reduce: str, include: bool) -> str:
    """x [entries, width] and the rows of each entry, or these alone where there are any."""
    require(reduce in ("sum", "mean", "amax", "amin", "prod"), f"reduce={reduce!r}")
    entries, width = c.shape(x)
    if reduce == "prod":
        return _product(c, x, ids, rows, include)
    if reduce in ("sum", "mean"):
        total = added(c, ids, rows, entries, width)
        total = with_what_was_there(c, x, total) if include else total
        if include and reduce == "sum":
            return total
        count = added(c, ids, c.fill((*c.shape(ids), 1), 1.0), entries, 1)
        if include:
            return c.op("div", total, c.shift(count, 1))
        value = total if reduce == "sum" else c.op("div", total, c.clamp(count, 1.0, None))
        return c.where(c.compare("gt", count, 0), value, x)
    if reduce == "amin":
        return c.op("neg", _largest(c, c.op("neg", x), c.op("neg", rows), ids, include))
    return _largest(c, x, rows, ids, include)


def _product(c: Context, x: str, ids: str, rows: str, include: bool) -> str:
    """Rows in the order of their entries, each with those before it that are of the same entry, twice as far in every
    round: the last one's product is the entry's. There is no quotient, so zeros are numbers as any other."""
    (entries, width), (total,) = c.shape(x), c.shape(ids)
    order = c.op("argsort", c.floating(ids), attrs=ArgsortAttrs(count=total))
    ids = c.reshape(read(c, ids, order), (total, 1))
    rows, one = read(c, rows, order, (width,)), c.fill((), 1.0)
    for apart in doubling(total):
        own = c.slice(rows, 0, apart, total)
        same = c.compare("eq", c.slice(ids, 0, apart, total), c.slice(ids, 0, 0, total - apart))
        before = c.where(same, c.slice(rows, 0, 0, total - apart), one)
        rows = c.concat([c.slice(rows, 0, 0, apart), c.op("mul", before, own)], 0)
    last = c.fill((1, 1), 1.0)
    if total > 1:
        last = c.concat([c.compare("ne", c.slice(ids, 0, 1, total), c.slice(ids, 0, 0, total - 1)), last], 0)
    found = added(c, ids, c.op("mul", rows, last), entries, width)
    some = c.compare("gt", added(c, ids, last, entries, 1), 0)
    return c.where(some, c.op("mul", x, found) if include else found, x)


def largest_rows(c: Context, rows: str, ids: str, entries: int) -> str:
    """The largest elements of the rows of each entry, whose gradient equal ones share; 0 where there is none."""
    attrs = SegmentAttrs(rows=entries)
    best, share = c.outputs("segment_max", *_where_they_lie(c, rows, c.shape(ids)[0]), ids, attrs=attrs)
    return c.where(c.compare("eq", c.op("detach", share), 0), c.fill((), 0.0), best)


def _largest(c: Context, x: str, rows: str, ids: str, include: bool) -> str:
    """Equal ones share the gradient. As in PyTorch what was there has its share also where it was left out, and then
    drops it; elements of entries without rows keep theirs."""
    attrs = SegmentAttrs(rows=c.shape(x)[0])
    best, share = c.outputs("segment_max", *_where_they_lie(c, rows, c.shape(ids)[0]), ids, attrs=attrs)
    fixed, share, before, zero = c.op("detach", best), c.op("detach", share), c.op("detach", x), c.fill((), 0.0)
    none = c.compare("eq", share, 0)
    maker = c.maker(rows)
    if maker is not None and maker.op == "detach" and not include:  # as softmax needs it: no gradient to share
        return c.where(none, x, best)
    if not include:
        own = c.compare("eq", before, fixed)
        part = _part_of_rows(c, own, share)
        return c.where(none, x, _mixed(c, part, best, c.where(own, before, zero)))
    own = c.shift(c.op("neg", c.compare("lt", before, fixed)), 1)  # a NaN is as large as anything
    alone = c.where(none, c.fill((), 1.0), c.compare("gt", before, fixed))
    part = c.where(alone, zero, _part_of_rows(c, own, share))
    return _mixed(c, part, c.where(alone, zero, best), c.where(own, x, zero))


def _where_they_lie(c: Context, rows: str, count: int) -> tuple[str, str]:
    """Rows as those of a matrix, and which ones. Picked rows stay where they are, unless that is in a table that is
    trained: their gradient is added to it where it lies."""
    maker = c.maker(c.behind_views(rows))
    if maker is not None and maker.op == "embedding" and maker.attrs == EmbeddingAttrs():
        x, ids = maker.inputs
        if c.shape(ids) == (count,) and c.b.values[x].role is not Role.PARAMETER:
            return x, ids
    return rows, c.val(c.torch.arange(count))


def _part_of_rows(c: Context, own: str, share: str) -> str:
    """Of n equal rows, whose share is 1 / n, beside what was there, if that is equal, too: n / (n + 1) or 1."""
    return c.op("reciprocal", c.shift(c.op("mul", own, share), 1))


def _mixed(c: Context, part: str, a: str, b: str) -> str:
    """Of equal numbers either, with a part of the gradient to each."""
    rest = c.shift(c.op("neg", part), 1)
    return c.op("add", c.op("mul", part, a), c.op("mul", rest, b))
