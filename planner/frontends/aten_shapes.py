"""ATen's shape operators: views, joins, parts."""

from math import isfinite
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_picks import pick
from planner.frontends.torch_surroundings import LOWER
from planner.graph.model import DType
from planner.ops.masks import CastAttrs

MOST_PARTS = 8
"""Of so many an axis is put together anew; more are read by their positions."""


@lowers("view", "reshape", "_unsafe_view", "view_copy")
def _view(c: Context, x: str, shape: list[int]) -> str:
    require(not isinstance(shape, str) and all(isinstance(d, int) for d in shape), "another type or a dynamic shape")
    return c.reshape(x, shape)


@lowers("flatten")
def _flatten(c: Context, x: str, start: int, end: int) -> str:
    shape = c.shape(x) or (1,)
    start, end = start % len(shape), end % len(shape)
    return c.reshape(x, (*shape[:start], -1, *shape[end + 1 :]))


@lowers("unflatten")
def _unflatten(c: Context, x: str, axis: int, sizes: list[int]) -> str:
    shape = c.shape(x)
    axis %= len(shape)
    return c.reshape(x, (*shape[:axis], *sizes, *shape[axis + 1 :]))


@lowers("permute", "permute_copy")
def _permute(c: Context, x: str, axes: list[int]) -> str:
    return c.permute(x, axes)


@lowers("transpose", "swapaxes")
def _transpose(c: Context, x: str, first: int, second: int) -> str:
    return c.transpose(x, first, second)


@lowers("t", "numpy_T")
def _t(c: Context, x: str) -> str:
    return c.permute(x, reversed(range(c.rank(x))))


@lowers("unsqueeze")
def _unsqueeze(c: Context, x: str, axis: int) -> str:
    return c.unsqueeze(x, axis)


@lowers("squeeze")
def _squeeze(c: Context, x: str, axes: Any = None) -> str:
    chosen = range(c.rank(x)) if axes is None else [axes] if isinstance(axes, int) else axes
    return c.squeeze(x, chosen)


@lowers("expand")
def _expand(c: Context, x: Any, shape: list[int], implicit: bool) -> str:
    return c.expand(c.val(x), shape)


@lowers("repeat")
def _repeat(c: Context, x: str, repeats: list[int]) -> str:
    """Expand between the dimensions, then join: (n, c) -> (r1, n, r2, c) -> (r1 n, r2 c)."""
    own = (*([1] * (len(repeats) - c.rank(x))), *c.shape(x))
    pairs = c.reshape(x, (d for own_d in own for d in (1, own_d)))
    spread = c.expand(pairs, (d for r, own_d in zip(repeats, own, strict=True) for d in (r, own_d)))
    return c.reshape(spread, (r * d for r, d in zip(repeats, own, strict=True)))


@lowers("repeat_interleave")
def _repeat_interleave(c: Context, x: str, repeats: Any, axis: int | None = None, size: Any = None) -> str:
    require(isinstance(repeats, int), "repeats that are a tensor")
    x = c.reshape(x, (-1,)) if axis is None else x
    axis = (axis or 0) % c.rank(x)
    shape = c.shape(x)
    spread = c.expand(c.unsqueeze(x, axis + 1), (*shape[: axis + 1], repeats, *shape[axis + 1 :]))
    return c.reshape(spread, (*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))


@lowers("cat", "concat")
def _cat(c: Context, values: list[Any], axis: int) -> str:
    return c.concat(_alike(c, [v for v in values if 0 not in c.shape_of(v)]), axis)


@lowers("stack")
def _stack(c: Context, values: list[Any], axis: int) -> str:
    return c.stack(_alike(c, values), axis)


def _alike(c: Context, values: list[Any]) -> list[str]:
    """Of one type: that of PyTorch's result, where they have several."""
    held = [c.val(v) for v in values]
    if len({c.b.type(v).dtype for v in held}) == 1:
        return held
    return [c.to_whole(v) if c.whole_result() else c.floating(v) for v in held]


@lowers("split", "split_with_sizes", "split_copy")
def _split(c: Context, x: str, sizes: Any, axis: int = 0) -> list[str]:
    axis %= c.rank(x)
    extent = c.shape(x)[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, extent - start) for start in range(0, extent, sizes)]
    parts = iter(c.split(x, axis, [size for size in sizes if size]))
    empty = c.torch.empty(*c.shape(x)[:axis], 0, *c.shape(x)[axis + 1 :])
    return [next(parts) if size else empty for size in sizes]


@lowers("chunk")
def _chunk(c: Context, x: str, chunks: int, axis: int = 0) -> list[str]:
    return _split(c, x, -(-c.shape(x)[axis % c.rank(x)] // chunks), axis)


@lowers("unbind", "unbind_copy")
def _unbind(c: Context, x: str, axis: int) -> list[str]:
    shape, axis = c.shape(x), axis % c.rank(x)
    parts = c.split(*c.before_moving(x, axis), (1,) * shape[axis])
    return [c.reshape(part, (*shape[:axis], *shape[axis + 1 :])) for part in parts]


@lowers("select", "select_copy")
def _select(c: Context, x: str, axis: int, index: int) -> str:
    return c.select(x, axis, index)


@lowers("narrow_copy")
def _narrow(c: Context, x: str, axis: int, start: int, length: int) -> str:
    start %= c.shape(x)[axis]
    return _slice(c, x, axis, start, start + length)


@lowers("slice")
def _slice(c: Context, x: str, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> str:
    axis %= c.rank(x)
    first, last, _ = slice(start, stop).indices(c.shape(x)[axis])
    require(last > first, "an empty slice")
    return c.slice(x, axis, first, last, step)


@lowers("slice_scatter")
def _slice_scatter(
    c: Context, x: Any, source: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> str:
    if 0 in c.shape_of(source):
        return c.val(x)
    return _written(c, c.val(x), c.held(source, 1), axis, (start, stop, step))


def _written(c: Context, x: str, source: str, axis: int, places: tuple[Any, Any, int]) -> str:
    axis %= c.rank(x)
    extent = c.shape(x)[axis]
    first, last, step = *slice(*places[:2]).indices(extent)[:2], places[2]
    if step != 1:
        return _every(c, x, source, axis, range(first, last, step))
    before = [c.slice(x, axis, 0, first)] if first > 0 else []
    behind = [c.slice(x, axis, last, extent)] if last < extent else []
    return c.concat([*before, source, *behind], axis)


def _every(c: Context, x: str, source: str, axis: int, places: range) -> str:
    """x with the source at places that are some steps apart: the source with gaps, where a mask says so."""
    extent, count, rank = c.shape(x)[axis], len(places), c.rank(x)
    shape, behind = c.shape(source), [(0, 0)] * (rank - axis - 1)
    apart = c.pad(c.unsqueeze(source, axis + 1), [(0, 0)] * (axis + 1) + [(0, places.step - 1)] + behind)
    wide = c.reshape(apart, (*shape[:axis], count * places.step, *shape[axis + 1 :]))
    sides = [(0, 0)] * axis + [(places.start, extent - places.start - count * places.step)] + behind
    mask = c.torch.zeros(extent)
    mask[list(places)] = 1
    chosen = c.val(mask.reshape(-1, *([1] * (rank - 1 - axis))))
    return (c.chosen_whole if c.whole_result() else c.where)(chosen, c.pad(wide, sides), x)


@lowers("select_scatter")
def _select_scatter(c: Context, x: Any, source: Any, axis: int, index: int) -> str:
    x = c.val(x)
    index %= c.shape(x)[axis]
    return _written(c, x, c.unsqueeze(c.held(source, 1), axis % c.rank(x)), axis, (index, index + 1, 1))


@lowers("constant_pad_nd")
def _pad(c: Context, x: str, pads: list[int], value: float) -> str:
    """PyTorch lists pads from the last dimension on."""
    pairs = [(pads[i], pads[i + 1]) for i in range(0, len(pads), 2)][::-1]
    return c.pad(x, [(0, 0)] * (c.rank(x) - len(pairs)) + pairs, float(value))


@lowers("roll")
def _roll(c: Context, x: str, shifts: list[int], axes: list[int]) -> str:
    shape = c.shape(x)
    if not axes:
        return c.reshape(_roll(c, c.reshape(x, (-1,)), shifts, [0]), shape)
    for shift, axis in zip(shifts, axes, strict=True):
        extent = shape[axis]
        cut = -shift % extent
        if cut:
            x = c.concat([c.slice(x, axis, cut, extent), c.slice(x, axis, 0, cut)], axis)
    return x


@lowers("flip")
def _flip(c: Context, x: str, axes: list[int]) -> str:
    for axis in (a % c.rank(x) for a in axes):
        extent = c.shape(x)[axis]
        if extent > MOST_PARTS:
            x = pick(c, x, axis, c.torch.arange(extent - 1, -1, -1))
        else:
            x = c.concat([c.slice(x, axis, i, i + 1) for i in reversed(range(extent))], axis)
    return x


@lowers("fill")
def _fill(c: Context, x: str, value: Any) -> str:
    number = c.number(value)
    if number is not None and isfinite(number):
        return c.fill(c.shape(x), float(number))
    return c.expand(c.val(value if number is None else c.torch.tensor(number)), c.shape(x))


@lowers("copy")
def _copy(c: Context, x: Any, source: Any, *_: Any) -> str:
    return c.expand(c.held(source, 1), c.shape_of(x))


@lowers("zeros_like", "new_zeros", "empty_like", "new_empty", "zero")
def _zeros(c: Context, x: str, *rest: Any) -> Any:
    return _full(c, x, 0.0, rest)


@lowers("ones_like", "new_ones")
def _ones(c: Context, x: str, *rest: Any) -> Any:
    return _full(c, x, 1.0, rest)


@lowers("full_like")
def _full_like(c: Context, x: str, value: Any, *_: Any) -> Any:
    return _full(c, x, float(value), ())


@lowers("new_full")
def _new_full(c: Context, x: str, shape: list[int], value: Any, *_: Any) -> Any:
    return _full(c, x, float(value), (shape,))


def _full(c: Context, x: str, value: float, rest: tuple[Any, ...]) -> Any:
    """A constant of the shape in `rest`, or of x's shape; like every constant it is folded further, so its type is
    PyTorch's: whole numbers go before a sentence, masks are turned over."""
    shape = rest[0] if rest and isinstance(rest[0], list | tuple) else c.shape(x)
    return c.torch.full(tuple(shape), value, dtype=c.node.meta["val"].dtype)


@lowers("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "positive")
def _same(c: Context, x: str, *_: Any) -> str:
    return x


@lowers("stepplan.detach")
def _detach(c: Context, x: str) -> str:
    return c.op("detach", x)


@lowers("diagonal")
def _diagonal(c: Context, x: str, offset: int = 0, first: int = 0, second: int = 1) -> str:
    """Every (columns + 1)-th element of the flattened matrices."""
    rank = c.rank(x)
    first, second = first % rank, second % rank
    x = c.permute(x, (*(a for a in range(rank) if a not in (first, second)), first, second))
    *lead, rows, columns = c.shape(x)
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    require(count > 0, "an empty diagonal")
    start = offset if offset >= 0 else -offset * columns
    flat = c.reshape(x, (*lead, rows * columns))
    return c.slice(flat, len(lead), start, start + (count - 1) * (columns + 1) + 1, columns + 1)


@lowers("diag_embed")
def _diag_embed(c: Context, x: str, offset: int = 0, first: int = -2, second: int = -1) -> str:
    """Behind every element come as many zeros as a row has elements; then the next row begins one further."""
    rank = c.rank(x) + 1
    *lead, n = c.shape(x)
    apart = c.pad(c.unsqueeze(x, rank - 1), [(0, 0)] * (rank - 1) + [(0, n)])
    square = c.reshape(c.slice(c.reshape(apart, (*lead, n * (n + 1))), rank - 2, 0, n * n), (*lead, n, n))
    right, below = max(offset, 0), max(-offset, 0)
    y = c.pad(square, [(0, 0)] * (rank - 2) + [(below, right), (right, below)])
    order = [a for a in range(rank) if a not in (first % rank, second % rank)] + [first % rank, second % rank]
    return c.permute(y, (order.index(a) for a in range(rank)))


@lowers("diagonal_scatter")
def _diagonal_scatter(c: Context, x: Any, source: Any, offset: int = 0, first: int = 0, second: int = 1) -> str:
    """In the flattened matrices, the diagonal's elements are equally far apart."""
    x, rank = c.val(x), c.rank(c.val(x))
    order = [a for a in range(rank) if a not in (first % rank, second % rank)] + [first % rank, second % rank]
    *lead, rows, columns = (c.shape(x)[a] for a in order)
    flat = c.reshape(c.permute(x, order), (*lead, rows * columns))
    start = max(offset, 0) + max(-offset, 0) * columns
    stop = start + (c.shape_of(source)[-1] - 1) * (columns + 1) + 1
    y = _slice_scatter(c, flat, source, len(lead), start, stop, columns + 1)
    return c.permute(c.reshape(y, (*lead, rows, columns)), (order.index(a) for a in range(rank)))


@lowers("as_strided", "as_strided_copy")
def _as_strided(c: Context, x: str, size: list[int], stride: list[int], offset: int | None = None) -> str:
    """Elements by where they lie in PyTorch's memory; a tensor without gaps is its elements in that order."""
    given = c.node.args[0].meta["val"]
    order = sorted(range(given.dim()), key=lambda a: (-given.stride(a), given.shape[a] == 1, a))
    dense = given.permute(order).is_contiguous()
    require(dense and given.storage_offset() == 0, "a view of another tensor")
    places = c.torch.tensor(offset or 0)
    for extent, step in zip(size, stride, strict=True):
        places = places[..., None] + c.torch.arange(extent) * step
    require(bool((places < given.numel()).all()), "elements outside of the tensor")
    return pick(c, c.reshape(c.permute(x, order), (-1,)), 0, places)


@lowers("unfold")
def _unfold(c: Context, x: str, axis: int, size: int, step: int) -> str:
    """All windows of an axis; their elements are a new last dimension."""
    axis %= c.rank(x)
    count = (c.shape(x)[axis] - size) // step + 1
    parts = [c.slice(x, axis, k, k + (count - 1) * step + 1, step) for k in range(size)]
    return c.concat([c.unsqueeze(p, c.rank(p)) for p in parts], c.rank(x))


@lowers("_to_copy", "to")
def _to(c: Context, x: str, *rest: Any) -> str:
    """Between float32, whole numbers and booleans, which are 0 and 1 in float32."""
    torch, held = c.torch, c.b.type(x).dtype
    wanted = next((a for a in rest if isinstance(a, torch.dtype)), None)
    if wanted is None or wanted == c.dtype(0):
        return x
    if wanted is torch.bool:
        return c.truth(x, 0)
    if wanted is torch.float32:
        return c.floating(x)
    if wanted in (torch.bfloat16, torch.float16):
        raise UserError("SP1001", f"{c.name!r} converts to {wanted}", LOWER)
    require(wanted in (torch.int64, torch.int32), f"conversion to {wanted}")
    return x if held is DType.INT64 else c.op("cast", x, attrs=CastAttrs(dtype="int64"))
