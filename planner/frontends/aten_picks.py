"""ATen's operators that read or write elements by their indices: gather, scatter, index, one-hot, bags of embeddings.

Indices become places in the flattened data, whole-number arithmetic where they depend on the data; reading them is an
embedding of rows, adding to them its gradient. An index outside of its axis is place -1, which the executor reports.
"""

from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.graph.model import DType
from planner.ops.embedding import EmbeddingAttrs, EmbeddingGradAttrs
from planner.ops.masks import CastAttrs


def is_whole(c: Context, x: Any) -> bool:
    if c.is_constant(x):
        return not x.dtype.is_floating_point and x.dtype is not c.torch.bool
    return isinstance(x, str) and c.b.type(x).dtype is DType.INT64


# -- places ----------------------------------------------------------------------------------------------------
def _places(c: Context, indices: list[Any], extents: list[int]) -> Any:
    """Row-major places of index tuples, broadcast; -1 where an index that depends on the data is out of its axis."""
    torch = c.torch
    flat: Any = torch.tensor(0)
    valid: Any = None
    for index, extent in zip(indices, extents, strict=True):
        if c.is_constant(index):
            index = torch.where(index < 0, index + extent, index).long()
        elif len(indices) > 1:
            inside = c.op("mul", c.compare("ge", index, 0), c.compare("lt", index, extent))
            valid = inside if valid is None else c.op("mul", valid, inside)
        flat = c.whole_of("add", c.whole_of("mul", flat, torch.tensor(extent)), index)
    if valid is None or c.is_constant(flat):
        return flat
    kept = c.op("cast", valid, attrs=CastAttrs(dtype="int64"))
    one = torch.tensor(1)
    return c.whole_of("sub", c.whole_of("mul", c.whole_of("add", flat, one), kept), one)


def _along(c: Context, index: Any, axis: int, shape: tuple[int, ...]) -> list[Any]:
    """gather's index as one index for every axis of the data."""
    found: list[Any] = []
    for place, extent in enumerate(c.shape_of(index)):
        positions = c.torch.arange(extent).reshape(-1, *([1] * (len(shape) - place - 1)))
        found.append(index if place == axis else positions)
    return found


def read(c: Context, x: str, places: Any, rest: tuple[int, ...] = ()) -> str:
    """The elements, or blocks of the shape `rest`, of the flattened x at these places, in the places' shape."""
    whole = is_whole(c, x)
    table = c.reshape(c.floating(x), (-1, prod(rest)))
    ids = c.val(places)
    found = c.reshape(c.op("embedding", table, ids, attrs=EmbeddingAttrs()), (*c.shape(ids), *rest))
    return c.to_whole(found) if whole else found


def added(c: Context, places: Any, rows: str, entries: int, width: int) -> str:
    """(entries, width): the rows, added up where their places are."""
    ids = c.reshape(c.val(places), (-1,))
    attrs = EmbeddingGradAttrs(entries=entries)
    return c.op("embedding_backward", c.reshape(rows, (-1, width)), ids, attrs=attrs)


# -- reading ---------------------------------------------------------------------------------------------------
@lowers("gather")
def _gather(c: Context, x: Any, axis: int, index: Any, *_: Any) -> str:
    x = c.val(x)
    shape = c.shape(x) or (1,)
    places = _places(c, _along(c, index, axis % len(shape), shape), list(shape))
    return read(c, x, places)


@lowers("take")
def _take(c: Context, x: Any, index: Any) -> str:
    x = c.val(x)
    return read(c, x, _places(c, [index], [prod(c.shape(x))]))


def several(c: Context, x: str, indices: list[Any], axes: list[int]) -> str:
    """x[..., i, j, ...] with neighbouring indices that depend on the data."""
    shape = c.shape(x)
    first, behind = axes[0], axes[-1] + 1
    places = _places(c, [indices[a] for a in axes], [shape[a] for a in axes])
    order = (*axes, *range(first), *range(behind, len(shape)))
    rest = tuple(shape[a] for a in order[len(axes) :])
    picked = read(c, c.permute(x, order), places, rest)
    count = c.rank(picked) - len(rest)
    back = (*range(count, count + first), *range(count), *range(count + first, c.rank(picked)))
    return c.permute(picked, back)


# -- writing ---------------------------------------------------------------------------------------------------
def _rows_of(c: Context, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """The one index per row, where a scatter along the first axis repeats it over the others; else None."""
    if axis != 0 or c.is_constant(index) or len(shape) < 2:
        return None
    maker = next((n for n in c.b.nodes if index in n.outputs), None)
    if maker is None or maker.op != "expand" or c.shape(index)[1:] != shape[1:]:
        return None
    source = c.shape(maker.inputs[0])
    narrow = len(source) == len(shape) and prod(source[1:]) == 1
    return c.reshape(maker.inputs[0], source[:1]) if narrow and source[0] == c.shape(index)[0] else None


@lowers("scatter_add")
def _scatter_add(c: Context, x: Any, axis: int, index: Any, source: Any) -> str:
    x, source = c.val(x), c.val(source)
    shape = c.shape(x)
    return c.op("add", x, _scattered(c, axis % len(shape), index, source, shape))


def _scattered(c: Context, axis: int, index: Any, source: str, shape: tuple[int, ...]) -> str:
    extents = c.shape_of(index)
    for place, extent in enumerate(extents):
        source = c.slice(source, place, 0, extent)
    rows = _rows_of(c, index, axis, shape)
    if rows is not None:
        return c.reshape(added(c, rows, source, shape[0], prod(shape[1:])), shape)
    places = _places(c, _along(c, index, axis, shape), list(shape))
    return c.reshape(added(c, places, source, prod(shape), 1), shape)


@lowers("scatter")
def _scatter(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: Any = None) -> str:
    """Places that several elements are written to hold one of them in PyTorch, here their mean (`_mean`)."""
    require(reduce is None, f"reduce={reduce!r}")
    x = c.val(x)
    shape = c.shape(x)
    axis %= len(shape)
    count = _scattered(c, axis, index, c.fill(c.shape_of(index), 1.0), shape)
    touched = c.compare("gt", count, 0)
    if c.number(source) is not None:
        return c.where(touched, c.fill((), float(c.number(source) or 0.0)), c.floating(x))
    total = _scattered(c, axis, index, c.floating(source), shape)
    return c.where(touched, _mean(c, total, count), c.floating(x))


def _mean(c: Context, total: str, count: str) -> str:
    """Of the elements that were written to one place. As in PyTorch, each of them has the place's whole gradient."""
    mean = c.op("div", total, c.clamp(count, 1.0, None))
    return c.op("add", total, c.op("detach", c.op("sub", mean, total)))


@lowers("scatter_reduce")
def _scatter_reduce(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: str, include: bool = True) -> str:
    require(reduce in ("sum", "mean"), f"reduce={reduce!r}")
    x, source = c.val(x), c.val(source)
    shape = c.shape(x)
    axis %= len(shape)
    total = _scattered(c, axis, index, source, shape)
    count = _scattered(c, axis, index, c.fill(c.shape_of(index), 1.0), shape)
    if include:
        total, more = c.op("add", total, x), c.shift(count, 1)
        return total if reduce == "sum" else c.op("div", total, more)
    value = total if reduce == "sum" else c.op("div", total, c.clamp(count, 1.0, None))
    return c.where(c.compare("gt", count, 0), value, x)


@lowers("index_add")
def _index_add(c: Context, x: Any, axis: int, index: Any, source: Any, alpha: float = 1) -> str:
    x, source = c.val(x), c.scale(c.val(source), float(alpha))
    shape = c.shape(x)
    axis %= len(shape)
    order = (axis, *(a for a in range(len(shape)) if a != axis))
    rest = [shape[a] for a in order[1:]]
    total = added(c, _places(c, [index], [shape[axis]]), c.permute(source, order), shape[axis], prod(rest))
    total = c.reshape(total, (shape[axis], *rest))
    return c.op("add", x, c.permute(total, (order.index(a) for a in range(len(shape)))))


def put(c: Context, x: str, indices: list[Any], values: Any, accumulate: bool) -> str:
    """x[i, j] = values, or += values, with whole-number indices of the first axes."""
    require(all(i is not None for i in indices), "a slice before an index")
    shape = c.shape(x)
    count = len(indices)
    places = _places(c, indices, list(shape[:count]))
    rest, entries = shape[count:], prod(shape[:count])
    rows = c.expand(c.floating(values), (*c.shape_of(places), *rest))
    total = c.reshape(added(c, places, rows, entries, prod(rest)), shape)
    if accumulate:
        return c.op("add", x, total)
    times = added(c, places, c.fill((*c.shape_of(places), 1), 1.0), entries, 1)
    times = c.reshape(times, (*shape[:count], *([1] * len(rest))))
    return c.where(c.compare("gt", times, 0), _mean(c, total, times), x)


@lowers("one_hot")
def _one_hot(c: Context, index: Any, classes: int) -> str:
    require(classes > 0, "as many classes as the data has")
    return c.to_whole(c.compare("eq", c.unsqueeze(c.val(index), c.rank(index)), c.torch.arange(classes)))


# -- bags ------------------------------------------------------------------------------------------------------
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
    """Sums or means of the rows between two offsets, as a product with who is in which bag."""
    require(not scale and mode in (0, 1), "scale_grad_by_freq or mode='max'")
    table, ids = c.val(table), c.val(ids)
    if c.node.target._overloadname == "padding_idx":  # which counts from the end, where it is negative
        padding_index = None if padding_index is None else padding_index % c.shape(table)[0]
    padding = -1 if padding_index is None else padding_index
    rows = c.op("embedding", table, ids, attrs=EmbeddingAttrs(padding_index=padding))
    total = c.shape(ids)[0]
    if weights is not None:
        rows = c.op("mul", rows, c.unsqueeze(c.val(weights), 1))
    positions = c.torch.arange(total)
    bags = c.shape_of(offsets)[0] - bool(include_last)
    begun = c.truth_of("le", offsets, positions)  # (offsets, positions)
    inside = c.slice(begun, 0, 0, bags)
    if c.shape(begun)[0] > bags:
        inside = c.op("sub", inside, c.slice(begun, 0, 1, bags + 1))
    elif bags > 1:
        behind = c.concat([c.slice(begun, 0, 1, bags), c.fill((1, total), 0.0)], 0)
        inside = c.op("sub", inside, behind)
    if padding >= 0:
        inside = c.op("mul", inside, c.compare("ne", ids, padding))
    y = c.matmul(inside, rows)
    if mode == 1:
        count = c.reduce("reduce_sum", inside, [1], True)
        y = c.op("div", y, c.clamp(count, 1.0, None))
    return (y, None, None, None)
