"""ATen's operators that order or accumulate along an axis: extremes, sorting, running sums."""

from collections.abc import Callable
from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_picks import gather, read
from planner.ops.order import ArgsortAttrs, CumsumAttrs

_MOST_FACTORS = 64
"""Of a running product that goes step by step; longer ones meet those twice as far before them in every round."""
_LARGEST = 3.4028234663852886e38
"""What is larger is infinite."""


# -- extremes --------------------------------------------------------------------------------------------------
def extreme(c: Context, x: str, axis: int, keepdim: bool, sign: int) -> str:
    """The largest (sign 1) or smallest (-1) element; the first of equal ones has the gradient."""
    x = c.floating(x)
    y = c.maximum_over(x if sign > 0 else c.op("neg", x), axis)
    y = y if sign > 0 else c.op("neg", y)
    return y if keepdim else c.squeeze(y, [axis])


def evenly(c: Context, x: str, axes: list[int], keepdim: bool, sign: int) -> str:
    """An extreme over several axes, whose gradient equal elements share."""
    x = c.floating(x)
    best = x
    for axis in axes:
        best = extreme(c, best, axis, True, sign)
    equal = c.compare("eq", x, best)
    total = c.reduce("reduce_sum", c.where(equal, x, c.fill((), 0.0)), axes, keepdim)
    return c.op("div", total, c.reduce("reduce_sum", equal, axes, keepdim))


def _first_place(c: Context, x: str, axis: int, sign: int) -> str:
    """Where along the axis the extreme is, with that axis; the first of several."""
    x = c.floating(x)
    extent = c.shape(x)[axis]
    places = c.torch.arange(extent).reshape(-1, *([1] * (c.rank(x) - 1 - axis % c.rank(x)))).float()
    mask = c.compare("eq", x, extreme(c, x, axis, True, sign))
    behind = c.where(mask, c.val(-places), c.fill((), -float(extent)))
    return c.op("neg", c.maximum_over(behind, axis))


def _extremes(sign: int) -> Any:
    def handler(c: Context, x: str, *rest: Any) -> Any:
        """The overloads (), (dim, keepdim) with places, and (other)."""
        if not rest:
            return evenly(c, x, list(range(c.rank(x))), False, sign) if c.rank(x) else x
        if not isinstance(rest[0], int):
            return c.larger(x, rest[0], sign)
        axis, keepdim = rest[0], bool(rest[1]) if len(rest) > 1 else False
        if c.rank(x) == 0:
            return (x, c.fill((), 0.0))
        value = extreme(c, x, axis, keepdim, sign)
        return (value, _place(c, x, axis, keepdim, sign) if c.wanted(1) else None)

    return handler


def _place(c: Context, x: str, axis: int, keepdim: bool, sign: int) -> str:
    place = _first_place(c, x, axis, sign)
    return c.to_whole(place if keepdim else c.squeeze(place, [axis]))


lowers("max")(_extremes(1))
lowers("min")(_extremes(-1))
for _name, _sign in (("amax", 1), ("amin", -1)):
    lowers(_name)(
        lambda c, x, axes, keepdim, sign=_sign: evenly(c, x, list(axes) or list(range(c.rank(x))), keepdim, sign)
    )
for _name, _sign in (("argmax", 1), ("argmin", -1)):
    lowers(_name)(lambda c, x, axis, keepdim, sign=_sign: _argument(c, x, axis, keepdim, sign))


def _argument(c: Context, x: str, axis: Any, keepdim: bool, sign: int) -> str:
    if axis is None:
        require(not keepdim, "keepdim without an axis")
        x, axis = c.reshape(x, (-1,)), 0
    return _place(c, x, axis, keepdim, sign)


@lowers("aminmax")
def _aminmax(c: Context, x: str, axis: Any, keepdim: bool) -> Any:
    axes = list(range(c.rank(x))) if axis is None else [axis]
    return (evenly(c, x, axes, keepdim, -1), evenly(c, x, axes, keepdim, 1))


# -- sorting ---------------------------------------------------------------------------------------------------
def _sorted(c: Context, x: str, axis: int, descending: bool, first: int, count: int) -> tuple[str, str]:
    """Of every row along the axis, the elements that come first, first + 1, ... in order, and where they were."""
    if not c.rank(x):
        return (x, c.val(c.torch.tensor(0)))
    last = c.rank(x) - 1
    turned = c.transpose(c.floating(x), axis % c.rank(x), last)
    places = c.op("argsort", turned, attrs=ArgsortAttrs(count=first + count, descending=descending))
    places = c.transpose(c.slice(places, last, first, first + count), axis % c.rank(x), last)
    return gather(c, x, axis, places), places


@lowers("topk")
def _topk(c: Context, x: str, k: int, axis: int, largest: bool, is_sorted: bool) -> Any:
    return _sorted(c, x, axis, largest, 0, k)


@lowers("sort")
def _sort(c: Context, x: str, *rest: Any) -> Any:
    """The overloads (dim, descending) and (stable, dim, descending)."""
    axis, descending = rest[-2:]
    return _sorted(c, x, axis, bool(descending), 0, c.shape(x)[axis] if c.rank(x) else 1)


@lowers("argsort")
def argsort(c: Context, x: str, *rest: Any) -> Any:
    return _sort(c, x, *rest)[1]


@lowers("kthvalue")
def _kth(c: Context, x: str, k: int, axis: int, keepdim: bool) -> Any:
    values, places = _sorted(c, x, axis, False, k - 1, 1)
    return (values, places) if keepdim else (c.squeeze(values, [axis]), c.squeeze(places, [axis]))


@lowers("median")
def _median(c: Context, x: str, *rest: Any) -> Any:
    """The lower of the two in the middle, as PyTorch has it."""
    if not rest:
        return _kth(c, c.reshape(x, (-1,)), (prod(c.shape(x)) + 1) // 2, 0, False)[0]
    return _kth(c, x, (c.shape(x)[rest[0]] + 1) // 2, rest[0], rest[1])


@lowers("bucketize")
def _bucketize(c: Context, x: Any, boundaries: Any, whole: bool = False, right: bool = False) -> str:
    """How many boundaries are below an element (right: not above it)."""
    x = c.floating(x)
    apart = c.unsqueeze(x, c.rank(x))
    below = c.compare("ge" if right else "gt", apart, boundaries)
    return c.reduce("reduce_sum", below, [c.rank(x)])


@lowers("searchsorted")
def _searchsorted(c: Context, sequence: Any, x: Any, whole: bool, right: bool, side: Any, sorter: Any) -> str:
    require(sorter is None, "a sorter")
    if len(c.shape_of(sequence)) > 1:  # one for every row
        sequence = c.unsqueeze(c.val(sequence), -2)
    return _bucketize(c, x, sequence, whole, right or side == "right")


# -- running sums ----------------------------------------------------------------------------------------------
@lowers("cumsum")
def _cumsum(c: Context, x: str, axis: int, *_: Any) -> str:
    y = cumsum(c, x, axis)
    return c.to_whole(y) if c.whole_result() else y


def cumsum(c: Context, x: str, axis: int) -> str:
    x, rank = c.floating(x), c.rank(x)
    return c.op("cumsum", x, attrs=CumsumAttrs(axis=axis % rank)) if rank else x


@lowers("masked_scatter")
def _masked_scatter(c: Context, x: Any, mask: Any, source: Any) -> str:
    """Where the mask is set, the source's elements one after the other: the running count of it says which."""
    x, source = c.floating(x), c.floating(source)
    shape = tuple(c.torch.broadcast_shapes(c.shape(x), c.shape_of(mask)))
    x, wide = c.expand(x, shape), c.expand(c.truth(mask, 1), shape)
    count = cumsum(c, c.reshape(wide, (-1,)), 0)
    place = c.to_whole(c.clamp(c.shift(count, -1), 0, None))
    found = read(c, c.reshape(source, (-1,)), place)
    return c.where(wide, c.reshape(found, shape), x)


@lowers("cumprod")
def _cumprod(c: Context, x: str, axis: int, *_: Any) -> str:
    axis %= c.rank(x)
    extent = c.shape(x)[axis]
    if extent > _MOST_FACTORS:
        return _so_far(c, x, axis, lambda before, own: c.op("mul", before, own))
    found = [c.slice(x, axis, 0, 1)]
    for i in range(1, extent):
        found.append(c.op("mul", found[-1], c.slice(x, axis, i, i + 1)))
    return c.concat(found, axis)


def _extremes_so_far(sign: int) -> Any:
    def handler(c: Context, x: str, axis: int) -> Any:
        """The extreme of every element and those before it, and where it is; of equal ones the last. In every round
        elements meet those twice as far before them."""
        axis %= c.rank(x)
        shape = c.shape(x)
        extent = shape[axis]
        best = c.op("detach", c.floating(x))
        positions = c.torch.arange(extent).float().reshape(-1, *([1] * (len(shape) - 1 - axis)))
        place = c.expand(c.val(positions), shape)
        for apart in doubling(extent):
            (first, own), (first_place, own_place) = (
                (c.slice(v, axis, 0, apart), c.slice(v, axis, apart, extent)) for v in (best, place)
            )
            before, before_place = (c.slice(v, axis, 0, extent - apart) for v in (best, place))
            better = c.compare("gt" if sign > 0 else "lt", before, own)
            best = c.concat([first, c.where(better, before, own)], axis)
            place = c.concat([first_place, c.where(better, before_place, own_place)], axis)
        found = c.to_whole(place)
        return (gather(c, x, axis, found), found)

    return handler


lowers("cummax")(_extremes_so_far(1))
lowers("cummin")(_extremes_so_far(-1))


def doubling(extent: int) -> list[int]:
    """1, 2, 4, ..., below the extent."""
    return [1 << i for i in range((extent - 1).bit_length())]


def _so_far(c: Context, x: str, axis: int, join: Callable[[str, str], str]) -> str:
    """What every element and those before it are joined to."""
    extent = c.shape(x)[axis]
    for apart in doubling(extent):
        first, own = c.slice(x, axis, 0, apart), c.slice(x, axis, apart, extent)
        x = c.concat([first, join(c.slice(x, axis, 0, extent - apart), own)], axis)
    return x


@lowers("logcumsumexp")
def _logcumsumexp(c: Context, x: str, axis: int) -> str:
    def join(before: str, own: str) -> str:
        largest = _taken_off(c, c.op("maximum", before, own))
        parts = (c.op("exp", c.op("sub", part, largest)) for part in (before, own))
        return c.op("add", c.op("log", c.op("add", *parts)), largest)

    return _so_far(c, x, axis % c.rank(x), join)


def _taken_off(c: Context, largest: str) -> str:
    """What is taken off exponents: their largest, which has no gradient of its own; nothing where that is infinite."""
    fixed = c.op("detach", largest)
    return c.where(c.compare("gt", c.op("abs", fixed), _LARGEST), c.fill((), 0.0), fixed)


@lowers("prod")
def _prod(c: Context, x: str, *rest: Any) -> str:
    """Halves times halves, until one element is left; the overloads () and (dim, keepdim)."""
    axis = rest[0] if len(rest) > 1 else None
    shape = c.shape(x)
    x = c.reshape(x, (-1,)) if axis is None else x
    at = 0 if axis is None else axis % len(shape)
    while (extent := c.shape(x)[at]) > 1:
        half = extent // 2
        y = c.op("mul", c.slice(x, at, 0, half), c.slice(x, at, half, 2 * half))
        x = c.concat([y, c.slice(x, at, extent - 1, extent)], at) if extent % 2 else y
    return x if axis is not None and rest[1] else c.squeeze(x, [at])


@lowers("logsumexp")
def _logsumexp(c: Context, x: str, axes: Any, keepdim: bool = False) -> str:
    """log(sum(exp(x - m))) + m with the largest element m."""
    axes = [axes] if isinstance(axes, int) else list(axes)
    best = x
    for axis in axes:
        best = c.maximum_over(best, axis)
    largest = _taken_off(c, best)
    total = c.reduce("reduce_sum", c.op("exp", c.op("sub", x, largest)), axes, True)
    y = c.op("add", c.op("log", total), largest)
    return y if keepdim else c.squeeze(y, axes)
