"""ATen's operators that reduce rows, or elements, which share an index, with what was there: sums, means, extremes."""

from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_picks import added, element_places, read, row_places
from planner.ops.segment import SegmentAttrs


@lowers("scatter_reduce")
def _scatter_reduce(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: str, include: bool = True) -> str:
    x, source = c.val(x), c.val(source)
    shape = c.shape(x) or (1,)
    axis %= len(shape)
    for place, extent in enumerate(c.shape_of(index)):
        source = c.slice(source, place, 0, extent)
    rows = row_places(c, index, axis, shape)
    if rows is not None:
        y = _reduced(c, c.reshape(x, (shape[0], -1)), rows, c.reshape(source, (c.shape(rows)[0], -1)), reduce, include)
    else:
        places = c.reshape(c.val(element_places(c, index, axis, shape)), (-1,))
        y = _reduced(c, c.reshape(x, (-1, 1)), places, c.reshape(source, (-1, 1)), reduce, include)
    return c.reshape(y, c.shape(x))


@lowers("index_reduce")
def _index_reduce(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: str, include: bool = True) -> str:
    x, source = c.val(x), c.val(source)
    shape = c.shape(x)
    axis %= len(shape)
    order = (axis, *(a for a in range(len(shape)) if a != axis))
    width = prod(shape) // shape[axis]
    rows, own = (c.reshape(c.permute(v, order), (-1, width)) for v in (source, x))
    y = c.reshape(_reduced(c, own, c.val(index), rows, reduce, include), (shape[a] for a in order))
    return c.permute(y, (order.index(a) for a in range(len(shape))))


def _reduced(c: Context, x: str, ids: str, rows: str, reduce: str, include: bool) -> str:
    """x [entries, width] and the rows of each entry, or these alone where there are any."""
    require(reduce in ("sum", "mean", "amax", "amin"), f"reduce={reduce!r}")
    entries, width = c.shape(x)
    if reduce in ("sum", "mean"):
        total = added(c, ids, rows, entries, width)
        count = added(c, ids, c.fill((*c.shape(ids), 1), 1.0), entries, 1)
        if include:
            total, count = c.op("add", total, x), c.shift(count, 1)
        value = total if reduce == "sum" else c.op("div", total, c.clamp(count, 1.0, None))
        return value if include else c.where(c.compare("gt", count, 0), value, x)
    if reduce == "amin":
        return c.op("neg", _largest(c, c.op("neg", x), c.op("neg", rows), ids, include))
    return _largest(c, x, rows, ids, include)


def _largest(c: Context, x: str, rows: str, ids: str, include: bool) -> str:
    """As the mean of those that are the largest, so that equal ones share the gradient. As in PyTorch what was there
    has a share also where it was left out."""
    entries, width = c.shape(x)
    best = c.op("segment_max", c.op("detach", rows), ids, attrs=SegmentAttrs(entries=entries))
    best = c.larger(best, c.op("detach", x)) if include else best
    equal, zero = c.compare("eq", rows, read(c, best, ids, (width,))), c.fill((), 0.0)
    own = c.compare("eq", x, best)
    total = c.op(
        "add",
        added(c, ids, c.where(equal, rows, zero), entries, width),
        c.where(own, x if include else c.op("detach", x), zero),
    )
    count = c.op("add", added(c, ids, equal, entries, width), own)
    mean = c.op("div", total, c.clamp(count, 1.0, None))
    value = c.where(c.compare("eq", best, best), mean, best)  # NaN equals nothing
    return value if include else c.where(c.compare("ne", best, -float("inf")), value, x)
