"""ATen's shape operators: views, joins, parts."""

from typing import Any

from planner.frontends.aten import Context, Unsupported, lowers, require


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


@lowers("permute")
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
    kept = [c.val(v) for v in values if c.shape_of(v) != (0,)]
    return c.concat(kept, axis)


@lowers("stack")
def _stack(c: Context, values: list[Any], axis: int) -> str:
    return c.concat([c.unsqueeze(c.val(v), axis) for v in values], axis)


@lowers("split", "split_with_sizes", "split_copy")
def _split(c: Context, x: str, sizes: Any, axis: int = 0) -> list[str]:
    axis %= c.rank(x)
    extent = c.shape(x)[axis]
    if isinstance(sizes, int):
        sizes = [min(sizes, extent - start) for start in range(0, extent, sizes)]
    parts, start = [], 0
    for size in sizes:
        parts.append(c.slice(x, axis, start, start + size))
        start += size
    return parts


@lowers("chunk")
def _chunk(c: Context, x: str, chunks: int, axis: int = 0) -> list[str]:
    return _split(c, x, -(-c.shape(x)[axis % c.rank(x)] // chunks), axis)


@lowers("unbind")
def _unbind(c: Context, x: str, axis: int) -> list[str]:
    return [c.select(x, axis, i) for i in range(c.shape(x)[axis])]


@lowers("select", "select_copy")
def _select(c: Context, x: str, axis: int, index: int) -> str:
    return c.select(x, axis, index)


@lowers("slice", "narrow_copy")
def _slice(c: Context, x: str, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1) -> str:
    axis %= c.rank(x)
    first, last, _ = slice(start, stop).indices(c.shape(x)[axis])
    require(last > first, "an empty slice")
    return c.slice(x, axis, first, last, step)


@lowers("slice_scatter")
def _slice_scatter(
    c: Context, x: Any, source: Any, axis: int = 0, start: Any = None, stop: Any = None, step: int = 1
) -> str:
    require(step == 1, "a step")
    x = c.val(x)
    axis %= c.rank(x)
    extent = c.shape(x)[axis]
    first, last, _ = slice(start, stop).indices(extent)
    before = [c.slice(x, axis, 0, first)] if first > 0 else []
    behind = [c.slice(x, axis, last, extent)] if last < extent else []
    return c.concat([*before, c.val(source), *behind], axis)


@lowers("select_scatter")
def _select_scatter(c: Context, x: Any, source: Any, axis: int, index: int) -> str:
    x = c.val(x)
    index %= c.shape(x)[axis]
    return _slice_scatter(c, x, c.unsqueeze(c.val(source), axis % c.rank(x)), axis, index, index + 1)


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


@lowers("index_select")
def _index_select(c: Context, x: str, axis: int, index: Any) -> str:
    if not c.is_constant(index):
        raise Unsupported("an index that depends on the data")
    return c.concat([c.slice(x, axis, i, i + 1) for i in index.reshape(-1).tolist()], axis)


@lowers("fill")
def _fill(c: Context, x: str, value: Any) -> str:
    if c.number(value) is not None:
        return c.fill(c.shape(x), float(c.number(value) or 0.0))
    return c.expand(c.val(value), c.shape(x))


@lowers("copy")
def _copy(c: Context, x: Any, source: Any, *_: Any) -> str:
    return c.expand(c.val(source), c.shape_of(x))


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
    """A constant of the shape in `rest`, or of x's shape; like every constant it is folded further."""
    shape = rest[0] if rest and isinstance(rest[0], list | tuple) else c.shape(x)
    return c.torch.full(tuple(shape), value)


@lowers("upsample_nearest2d")
def _upsample(c: Context, x: str, *arguments: Any) -> str:
    """Nearest neighbours by whole factors: repeat rows and columns."""
    n, channels, height, width = c.shape(x)
    size, scales = arguments[0], arguments[1] if len(arguments) == 2 else arguments[1:]
    out = size or [int(height * scales[0]), int(width * scales[1])]
    rows, columns = out[0] // height, out[1] // width
    require(rows * height == out[0] and columns * width == out[1], "a factor that is no integer")
    spread = c.expand(c.reshape(x, (n, channels, height, 1, width, 1)), (n, channels, height, rows, width, columns))
    return c.reshape(spread, (n, channels, *out))


@lowers("clone", "contiguous", "alias", "lift_fresh_copy", "lift_fresh", "positive")
def _same(c: Context, x: str, *_: Any) -> str:
    return x


@lowers("_to_copy", "to")
def _to(c: Context, x: str, *rest: Any) -> str:
    """Only within one type."""
    torch = c.torch
    kind = {"float32": torch.float32, "int64": torch.int64}[c.b.type(x).dtype.value]
    for argument in rest:
        require(not isinstance(argument, torch.dtype) or argument == kind, f"conversion to {argument}")
    return x
