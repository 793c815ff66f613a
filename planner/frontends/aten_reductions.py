"""ATen's reductions, norms and products."""

from math import inf, prod
from typing import Any

import numpy as np

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_order import evenly
from planner.frontends.aten_picks import pick
from planner.ops.grouped import GroupedAttrs

lowers("mean")(lambda c, x, *rest: c.reduce("reduce_mean", c.floating(x), *_axes(rest)))
lowers("sum")(lambda c, x, *rest: c.reduce("reduce_sum", c.floating(x), *_axes(rest)))


def _axes(rest: tuple[Any, ...]) -> tuple[list[int] | None, bool]:
    """(axes, keepdim) of the overloads (dtype) and (dim, keepdim, dtype)."""
    if len(rest) < 2:
        return None, False
    axes = [rest[0]] if isinstance(rest[0], int) else rest[0]
    return axes or None, bool(rest[1])


@lowers("any")
def _any(c: Context, x: str, *rest: Any) -> str:
    axes, keepdim = _axes((*rest, None)) if rest else (None, False)
    return c.compare("gt", c.reduce("reduce_sum", c.truth(x, 0), axes, keepdim), 0)


@lowers("all")
def _all(c: Context, x: str, *rest: Any) -> str:
    axes, keepdim = _axes((*rest, None)) if rest else (None, False)
    failing = c.shift(c.op("neg", c.truth(x, 0)), 1)
    return c.compare("eq", c.reduce("reduce_sum", failing, axes, keepdim), 0)


def _correction(value: Any) -> float:
    return 1.0 if value is None else float(value)


@lowers("var")
def _var(c: Context, *arguments: Any) -> str:
    return str(_var_mean(c, *arguments)[0])


@lowers("std")
def _std(c: Context, *arguments: Any) -> str:
    return c.root(_var(c, *arguments))


@lowers("var_mean")
def _var_mean(c: Context, x: str, axes: Any = None, correction: Any = None, keepdim: bool = False) -> Any:
    if isinstance(axes, bool):  # the overload (unbiased)
        axes, correction = None, float(axes)
    return c.variance(x, axes, _correction(correction), keepdim)


@lowers("std_mean")
def _std_mean(c: Context, *arguments: Any) -> Any:
    var, mean = _var_mean(c, *arguments)
    return c.root(var), mean


@lowers("_cdist_forward", "cdist")
def _cdist(c: Context, a: Any, b: Any, order: float, mode: Any) -> str:
    """Distances of all rows of a from all rows of b."""
    a, b = c.val(a), c.val(b)
    if order == 2:
        return c.root(_squared_distances(c, a, b))
    apart = c.op("sub", c.unsqueeze(a, c.rank(a) - 1), c.unsqueeze(b, c.rank(b) - 2))
    return _norm(c, apart, order, [-1], False, None)


def _squared_distances(c: Context, a: str, b: str) -> str:
    """Of stacks, where one matrix meets all of a stack, that is one matrix."""
    (n, features), m = c.shape(a)[-2:], c.shape(b)[-2]
    batch = np.broadcast_shapes(c.shape(a)[:-2], c.shape(b)[:-2])
    if prod(c.shape(b)[:-2]) == 1:
        found = c.op("distances", c.reshape(a, (-1, features)), c.reshape(b, (m, features)))
    else:
        sides = (c.expand(x, (*batch, *c.shape(x)[-2:])) for x in (a, b))
        found = c.op("distances", *(c.reshape(x, (prod(batch), *c.shape(x)[-2:])) for x in sides))
    return c.reshape(found, (*batch, n, m))


@lowers("_pdist_forward")
def _pdist(c: Context, x: Any, order: float) -> str:
    """Distances of every row from those behind it."""
    x, rows = c.val(x), c.shape(c.val(x))[0]
    first, second = c.torch.triu_indices(rows, rows, 1)
    return _norm(c, c.op("sub", pick(c, x, 0, first), pick(c, x, 0, second)), order, [-1], False, None)


@lowers("dist")
def _dist(c: Context, a: Any, b: Any, order: float) -> str:
    return _norm(c, c.op("sub", c.val(a), c.val(b)), order, None, False, None)


@lowers("linalg_vector_norm")
def _norm(c: Context, x: str, order: Any, axes: Any, keepdim: bool, dtype: Any) -> str:
    order = float(order)
    if order == 2:
        return c.root(c.reduce("reduce_sum", c.op("square", x), axes, keepdim))
    size = c.op("abs", x)
    if order == 1:
        return c.reduce("reduce_sum", size, axes, keepdim)
    if order == 0:
        return c.reduce("reduce_sum", c.compare("ne", x, 0), axes, keepdim)
    if abs(order) == inf:
        return evenly(c, size, list(axes or range(c.rank(x))), keepdim, 1 if order > 0 else -1)
    return _power_norm(c, size, order, axes, keepdim)


def _power_norm(c: Context, size: str, order: float, axes: Any, keepdim: bool) -> str:
    """(sum of |x|^p)^(1/p). Zeros have the gradient 0: they are counted as ones, and taken away again. Of a negative
    order they make the norm 0, whatever stands beside them."""
    zero = c.compare("eq", size, 0)
    total = c.reduce("reduce_sum", c.op("sub", c.power(c.op("add", size, zero), order), zero), axes, keepdim)
    empty = c.compare("eq", total, 0)
    norm = c.op("sub", c.power(c.op("add", total, empty), 1 / order), empty)
    if order > 0:
        return norm
    return c.where(c.compare("gt", c.reduce("reduce_sum", zero, axes, keepdim), 0), c.fill((), 0.0), norm)


@lowers("histc")
def _histc(c: Context, x: Any, bins: int, low: float, high: float) -> str:
    """How many numbers lie in each of as many equal parts of [low, high]."""
    require(low < high, "bounds that the data give")
    x = c.reshape(c.floating(x), (-1, 1))
    part = c.scale(c.op("div", c.shift(x, -float(low)), c.fill((), float(high) - float(low))), bins)
    first = c.torch.arange(bins, dtype=c.torch.float32)
    after = c.torch.cat((first[1:], c.torch.tensor([inf])))  # the last one has its end as well
    own = c.op("mul", c.compare("ge", part, first), c.compare("lt", part, after))
    return c.reduce("reduce_sum", c.op("mul", own, c.compare("le", x, float(high))), [0])


# -- products --------------------------------------------------------------------------------------------------
@lowers("matmul", "mm", "bmm", "mv", "dot")
def _matmul(c: Context, a: Any, b: Any) -> str:
    return c.matmul(c.val(a), c.val(b))


@lowers("addmm", "baddbmm", "addmv")
def _addmm(c: Context, x: Any, a: Any, b: Any, beta: float, alpha: float) -> str:
    product = c.scale(c.matmul(c.val(a), c.val(b)), float(alpha))
    return product if beta == 0 else c.op("add", product, c.scale(c.val(x), float(beta)))


@lowers("addbmm")
def _addbmm(c: Context, x: Any, a: Any, b: Any, beta: float, alpha: float) -> str:
    product = c.scale(c.reduce("reduce_sum", c.matmul(c.val(a), c.val(b)), [0]), float(alpha))
    return product if beta == 0 else c.op("add", product, c.scale(c.val(x), float(beta)))


@lowers("transformers.grouped_mm_fallback")
def _grouped(c: Context, rows: Any, matrices: Any, ends: Any) -> str:
    """What transformers calls while it is exported: PyTorch's own grouped_mm is bfloat16's alone then."""
    b, turned = c.turned(c.val(matrices))
    attrs = GroupedAttrs(transpose_b=turned)
    return c.op("grouped_matmul", c.val(rows), b, c.to_whole(c.val(ends)), attrs=attrs)


@lowers("bilinear")
def _bilinear(c: Context, a: Any, b: Any, weight: Any, bias: Any) -> str:
    """a W b of every row and output: W is a matrix per output."""
    a, b, weight = c.val(a), c.val(b), c.val(weight)
    (*lead, n), (outputs, _, m) = c.shape(a), c.shape(weight)
    rows = prod(lead)
    flat = c.reshape(c.permute(weight, (1, 0, 2)), (n, outputs * m))
    left = c.reshape(c.matmul(c.reshape(a, (rows, n)), flat), (rows, outputs, m))
    y = c.reshape(c.matmul(left, c.reshape(b, (rows, m, 1))), (*lead, outputs))
    return y if bias is None else c.op("add", y, c.val(bias))


@lowers("outer")
def _outer(c: Context, a: Any, b: Any) -> str:
    a, b = c.val(a), c.val(b)
    return c.op("mul", c.reshape(a, (prod(c.shape(a)), 1)), b)
