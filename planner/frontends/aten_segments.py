"""ATen's operators that reduce rows, or elements, which share an index, with what was there: sums, means, extremes."""

from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_picks import added, in_front, places_of, read, scattered_rows, with_what_was_there
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
    return _index_reduce(c, x, axis, index, c.scale(c.val(source), float(alpha)), "sum")


def _reduced(c: Context, x: str, ids: str, rows: str, reduce: str, include: bool) -> str:
    """x [entries, width] and the rows of each entry, or these alone where there are any."""
    require(reduce in ("sum", "mean", "amax", "amin"), f"reduce={reduce!r}")
    entries, width = c.shape(x)
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


def _largest(c: Context, x: str, rows: str, ids: str, include: bool) -> str:
    """As the mean of those that are the largest, so that equal ones share the gradient. As in PyTorch what was there
    has a share also where it was left out."""
    entries, width = c.shape(x)
    best = c.op("segment_max", c.op("detach", rows), ids, attrs=SegmentAttrs(entries=entries))
    maker = c.maker(rows)
    if maker is not None and maker.op == "detach" and not include:  # as softmax needs it: no gradient to share
        return c.where(c.compare("ne", best, -float("inf")), best, x)
    best = c.larger(best, c.op("detach", x)) if include else best
    equal, zero = c.compare("eq", rows, read(c, best, ids, (width,))), c.fill((), 0.0)
    own, x_or_fixed = c.compare("eq", x, best), x if include else c.op("detach", x)
    total = added(c, ids, c.where(equal, rows, zero), entries, width)
    total = c.op("add", total, c.where(own, x_or_fixed, zero))
    count = c.op("add", added(c, ids, equal, entries, width), own)
    mean = c.op("div", total, c.clamp(count, 1.0, None))
    value = c.where(c.compare("eq", best, best), mean, best)  # NaN equals nothing
    return value if include else c.where(c.compare("ne", best, -float("inf")), value, x)
