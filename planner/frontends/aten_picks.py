"""ATen's operators that read or write elements by their indices: gather, scatter, index, one-hot.

Indices become places in the flattened data, whole-number arithmetic where they depend on the data; reading them is an
embedding of rows, adding to them its gradient. An index outside of its axis is place -1, which the executor reports.
"""

from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_losses import before_log_softmax, row_losses
from planner.graph.model import DType
from planner.ops.embedding import EmbeddingAttrs, EmbeddingGradAttrs
from planner.ops.masks import CastAttrs
from planner.ops.shape import FillAttrs


def is_whole(c: Context, x: Any) -> bool:
    if c.is_constant(x):
        return not x.dtype.is_floating_point and x.dtype is not c.torch.bool
    return isinstance(x, str) and c.b.type(x).dtype is DType.INT64


# -- places ----------------------------------------------------------------------------------------------------
def places_of(c: Context, indices: list[Any], extents: list[int]) -> Any:
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


def with_what_was_there(c: Context, x: str, total: str) -> str:
    """The sum, unless x is 0 everywhere."""
    maker = c.maker(c.behind_views(x, "permute", "reshape"))
    zero = maker is not None and isinstance(maker.attrs, FillAttrs) and maker.attrs.value == 0
    return total if zero else c.op("add", x, total)


# -- reading ---------------------------------------------------------------------------------------------------
@lowers("gather")
def gather(c: Context, x: Any, axis: int, index: Any, *_: Any) -> str:
    x = c.val(x)
    shape = c.shape(x) or (1,)
    if (losses := _of_labels(c, x, axis % len(shape), index)) is not None:
        return losses
    places = places_of(c, _along(c, index, axis % len(shape), shape), list(shape))
    return read(c, x, places)


def _of_labels(c: Context, x: str, axis: int, index: Any) -> str | None:
    """Of one logarithm of a probability per row: the row's cross-entropy is its negative, and keeps none of the
    others."""
    logits, shape, wanted = before_log_softmax(c, x), c.shape(x), c.shape_of(index)
    if logits is None or axis != len(shape) - 1 or wanted != (*shape[:-1], 1):
        return None
    rows = row_losses(c, c.reshape(logits, (-1, shape[-1])), c.reshape(c.val(index), (-1,)))
    return c.reshape(c.op("neg", rows), wanted)


@lowers("take")
def _take(c: Context, x: Any, index: Any) -> str:
    x = c.val(x)
    return read(c, x, places_of(c, [index], [prod(c.shape(x))]))


def several(c: Context, x: str, indices: list[Any], axes: list[int]) -> str:
    """x[..., i, j, ...]: what the indices pick is in their place or, with a slice between them, in front."""
    shape = c.shape(x)
    first = axes[0] if _neighbours(axes) else 0
    places = places_of(c, [indices[a] for a in axes], [shape[a] for a in axes])
    order = in_front(axes, len(shape))
    rest = tuple(shape[a] for a in order[len(axes) :])
    picked = read(c, c.permute(x, order), places, rest)
    count = c.rank(picked) - len(rest)
    back = (*range(count, count + first), *range(count), *range(count + first, c.rank(picked)))
    return c.permute(picked, back)


@lowers("index_select")
def _index_select(c: Context, x: Any, axis: int, index: Any) -> str:
    x = c.val(x)
    return pick(c, x, axis % c.rank(x), index)


@lowers("index")
def _index(c: Context, x: Any, indices: list[Any]) -> str:
    """x[i, j, :, k]: whole numbers only. Constant ones that walk along axes are slices; one index picks rows."""
    x = c.val(x)
    shape = c.shape(x)
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    for position in axes:
        index = indices[position]
        boolean = index.dtype is c.torch.bool if c.is_constant(index) else c.b.type(index).dtype is not DType.INT64
        require(not boolean, "a boolean index, whose result has a size that depends on data")
    if all(c.is_constant(indices[a]) for a in axes):
        indices = [None if i is None else c.torch.where(i < 0, i + shape[a], i) for a, i in enumerate(indices)]
        walked = _walks(c, x, indices, axes)
        if walked is not None:
            return walked
    if len(axes) == 1:
        return pick(c, x, axes[0], indices[axes[0]])
    if not _neighbours(axes) or not all(c.is_constant(indices[a]) for a in axes):
        return several(c, x, indices, axes)
    flat, broadcast = 0, c.torch.broadcast_tensors(*(indices[a] for a in axes))
    for axis, index in zip(axes, broadcast, strict=True):
        flat = flat * shape[axis] + index
    merged = c.reshape(x, (*shape[: axes[0]], -1, *shape[axes[-1] + 1 :]))
    return pick(c, merged, axes[0], flat)


@lowers("index_put")
def _index_put(c: Context, x: Any, indices: list[Any], values: Any, accumulate: bool = False) -> str:
    """x[mask] = what is the same for all that the mask chooses, which may depend on the data, or x[i, j] = values."""
    x = c.val(x)
    if any(i is not None and 0 in c.shape_of(i) for i in indices):
        return c.val(x)
    if indices and all(is_whole(c, i) for i in indices if i is not None):
        return put(c, c.floating(x), indices, values, accumulate)
    require(len(indices) == 1 and indices[0] is not None, "several indices")
    mask: Any = indices[0]
    shape, given = c.shape_of(mask), c.shape_of(values)
    inner = c.rank(x) - len(shape)
    require(not accumulate and prod(given[: max(0, len(given) - inner)]) == 1, "several values")
    wide = c.reshape(c.floating(mask), (*shape, *([1] * inner)))
    same = given[len(given) - inner :] if len(given) > inner else given
    if c.whole_result():
        return c.chosen_whole(wide, c.reshape(c.to_whole(c.val(values)), same), x)
    return c.where(wide, c.reshape(c.floating(values), same), x)


def _walks(c: Context, x: str, indices: list[Any], axes: list[int]) -> str | None:
    """Every index runs first, first + 1, ... along a dimension of its own, in the order of the axes."""
    starts: dict[int, int] = {}
    rank = max(indices[a].dim() for a in axes)
    if axes != list(range(axes[0], axes[0] + rank)):
        return None
    for place, axis in enumerate(axes):
        index = indices[axis]
        extents = [d for d in (1,) * (rank - index.dim()) + tuple(index.shape)]
        values = index.reshape(-1).tolist()
        if any(d != 1 for i, d in enumerate(extents) if i != place):
            return None
        if values != list(range(values[0], values[0] + len(values))):
            return None
        starts[axis] = values[0]
    for axis in axes:
        x = c.slice(x, axis, starts[axis], starts[axis] + indices[axis].numel())
    return x


def pick(c: Context, x: str, axis: int, index: Any) -> str:
    """The rows of an axis that an index of any shape names, in that shape's place: an embedding, unless they are few
    or neighbours."""
    shape = c.shape(x)
    if c.is_constant(index):
        index = c.torch.where(index < 0, index + shape[axis], index)
        values = index.reshape(-1).tolist()
        if values and values == list(range(values[0], values[0] + len(values))):
            rows = c.slice(x, axis, values[0], values[0] + len(values))
            return c.reshape(rows, (*shape[:axis], *index.shape, *shape[axis + 1 :]))
        if len(values) == 1:
            return c.reshape(
                c.slice(x, axis, values[0], values[0] + 1), (*shape[:axis], *index.shape, *shape[axis + 1 :])
            )
    ids = c.val(index)
    require(c.b.type(ids).dtype is DType.INT64, "an index that is no int64")
    order = (axis, *(a for a in range(len(shape)) if a != axis))
    rest = [shape[a] for a in order[1:]]
    picked = read(c, c.permute(x, order), ids, tuple(rest))
    count = len(c.shape(ids))
    back = (*range(count, count + axis), *range(count), *range(count + axis, count + len(rest)))
    return c.permute(picked, back)


def _neighbours(axes: list[int]) -> bool:
    return axes == list(range(axes[0], axes[0] + len(axes)))


def in_front(axes: list[int], rank: int) -> list[int]:
    """The order of axes with these before the others."""
    return [*axes, *(a for a in range(rank) if a not in axes)]


# -- writing ---------------------------------------------------------------------------------------------------
def _row_places(c: Context, index: Any, axis: int, shape: tuple[int, ...]) -> Any:
    """The one index per row, where a scatter along the first axis repeats it over the others; else None."""
    if axis != 0 or len(shape) < 2:
        return None
    if c.is_constant(index):
        first = index.flatten(1)[:, 0]
        same = index.shape[1:] == shape[1:] and bool((index.flatten(1) == first[:, None]).all())
        return c.val(first.contiguous()) if same else None
    maker = c.maker(index)
    if maker is None or maker.op != "expand" or c.shape(index)[1:] != shape[1:]:
        return None
    source = c.shape(maker.inputs[0])
    narrow = len(source) == len(shape) and prod(source[1:]) == 1
    if not narrow or source[0] != c.shape(index)[0]:
        return None
    return c.reshape(c.behind_views(maker.inputs[0]), source[:1])  # one value for all that use these indices


@lowers("scatter_add")
def _scatter_add(c: Context, x: Any, axis: int, index: Any, source: Any) -> str:
    x = c.floating(x)
    shape = c.shape(x)
    return with_what_was_there(c, x, _scattered(c, axis % len(shape), index, c.floating(source), shape))


def _scattered(c: Context, axis: int, index: Any, source: str, shape: tuple[int, ...]) -> str:
    ids, rows, entries, width = scattered_rows(c, axis, index, source, shape)
    return c.reshape(added(c, ids, rows, entries, width), shape)


def scattered_rows(c: Context, axis: int, index: Any, source: str, shape: tuple[int, ...]) -> tuple[str, str, int, int]:
    """A scatter along the axis as rows and where they go: ids [rows], rows [rows, width] of a result [entries, width].
    Every element is one, unless whole rows share an index."""
    for place, extent in enumerate(c.shape_of(index)):
        source = c.slice(source, place, 0, extent)
    ids, entries = _row_places(c, index, axis, shape), shape[0]
    if ids is None:
        ids, entries = c.val(places_of(c, _along(c, index, axis, shape), list(shape))), prod(shape)
    width = prod(shape) // entries
    return c.reshape(ids, (-1,)), c.reshape(source, (-1, width)), entries, width


@lowers("scatter")
def _scatter(c: Context, x: Any, axis: int, index: Any, source: Any, reduce: Any = None) -> str:
    """Places that several elements are written to hold one of them in PyTorch, here their mean (`_mean`)."""
    require(reduce in (None, "add"), f"reduce={reduce!r}")
    x = c.val(x)
    shape = c.shape(x)
    axis %= len(shape)
    if reduce == "add":
        return _scatter_add(c, x, axis, index, c.expand(c.val(source), c.shape_of(index)))
    count = _scattered(c, axis, index, c.fill(c.shape_of(index), 1.0), shape)
    touched = c.compare("gt", count, 0)
    if c.number(source) is not None:
        return c.where(touched, c.floating(source), c.floating(x))
    total = _scattered(c, axis, index, c.floating(source), shape)
    return c.where(touched, _mean(c, total, count), c.floating(x))


def _mean(c: Context, total: str, count: str) -> str:
    """Of the elements that were written to one place. As in PyTorch, each of them has the place's whole gradient. One
    alone is left as it is: it may be infinite."""
    mean = c.op("div", total, c.clamp(count, 1.0, None))
    shared = c.op("add", total, c.op("detach", c.op("sub", mean, total)))
    return c.where(c.compare("gt", count, 1), shared, total)


def put(c: Context, x: str, indices: list[Any], values: Any, accumulate: bool) -> str:
    """x[i, :, j] = values, or += values, with whole-number indices."""
    axes = [a for a, index in enumerate(indices) if index is not None]
    if axes != list(range(len(indices))):
        return _put_behind(c, x, indices, axes, values, accumulate)
    shape = c.shape(x)
    count = len(indices)
    places = places_of(c, indices, list(shape[:count]))
    rest, entries = shape[count:], prod(shape[:count])
    times = added(c, places, c.fill((*c.shape_of(places), 1), 1.0), entries, 1)
    times = c.reshape(times, (*shape[:count], *([1] * len(rest))))
    if c.number(values) is not None and not accumulate:
        return c.where(c.compare("gt", times, 0), c.floating(values), x)
    rows = c.expand(c.floating(values), (*c.shape_of(places), *rest))
    total = c.reshape(added(c, places, rows, entries, prod(rest)), shape)
    if accumulate:
        return c.op("add", x, total)
    return c.where(c.compare("gt", times, 0), _mean(c, total, times), x)


def _put_behind(c: Context, x: str, indices: list[Any], axes: list[int], values: Any, accumulate: bool) -> str:
    """With slices before indices: the axes of those in front, and of the values what they have for them."""
    order, shape = in_front(axes, c.rank(x)), c.shape(x)
    picked = c.torch.broadcast_shapes(*(c.shape_of(indices[a]) for a in axes))
    first = axes[0] if _neighbours(axes) else 0
    rest = [shape[a] for a in order[len(axes) :]]
    wide = c.expand(c.floating(values), (*rest[:first], *picked, *rest[first:]))
    moved = (*range(first, first + len(picked)), *range(first), *range(first + len(picked), c.rank(wide)))
    y = put(c, c.permute(x, order), [indices[a] for a in axes], c.permute(wide, moved), accumulate)
    return c.permute(y, (order.index(a) for a in range(c.rank(x))))


@lowers("index_fill")
def _index_fill(c: Context, x: Any, axis: int, index: Any, value: Any) -> str:
    """Where several indices name a place, its gradient is the number's once."""
    x = c.val(x)
    shape = c.shape(x) or (1,)
    axis %= len(shape)
    places = places_of(c, [index], [shape[axis]])
    times = added(c, places, c.fill((prod(c.shape_of(places)), 1), 1.0), shape[axis], 1)
    wide = c.reshape(times, (shape[axis], *([1] * (len(shape) - 1 - axis))))
    y = c.where(c.compare("gt", wide, 0), c.reshape(c.floating(value), ()), c.reshape(c.floating(x), shape))
    return c.reshape(y, c.shape(x))


@lowers("one_hot")
def _one_hot(c: Context, index: Any, classes: int) -> str:
    require(classes > 0, "as many classes as the data has")
    return c.to_whole(c.compare("eq", c.unsqueeze(c.val(index), c.rank(index)), c.torch.arange(classes)))
