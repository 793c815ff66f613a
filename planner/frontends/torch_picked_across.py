"""Functions across the rows that a mask of data picks: what is not picked counts nothing in sums and means, is smaller
than all in maxima, and goes last where rows are sorted.

Where nothing is picked, extremes and medians are NaN, of which PyTorch says that there are none."""

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.frontends.torch_picked import Picked

_NEUTRAL = {
    "sum": 0, "norm": 0, "vector_norm": 0, "linalg_norm": 0, "linalg_vector_norm": 0, "prod": 1, "all": True,
    "any": False, "count_nonzero": 0, "logsumexp": float("-inf"), "amax": float("-inf"), "amin": float("inf"),
}  # fmt: skip
"""What changes nothing, in the place of what is not picked."""
_EXTREMES = {"max": "amax", "min": "amin", "amax": "amax", "amin": "amin"}


def across(p: "Picked", function: Any, name: str, axes: tuple[int, ...], keep: bool, args: Any, named: Any) -> Any:
    """`function` of p's rows along these axes, one of which is that of rows. All are meant where `axes` is empty.
    `args`, `named`: as it was called. A tensor, or rows again."""
    handler = _HANDLERS.get(name)
    if handler is not None:
        return handler(p, name, axes, keep, named | {"": args})
    if name in _EXTREMES:
        return _extreme(p, name, axes, keep)
    if name not in _NEUTRAL:
        raise p.refuse(f"{name} across them")
    if name in ("norm", "linalg_norm", "linalg_vector_norm", "vector_norm"):
        _require_norm(p, name, args, named)
    rows = p.rows if p.rows.is_floating_point() or name in ("all", "any") else p.rows.long()
    rows = rows.bool() if name in ("all", "any") else rows
    return function(p.mask.filled(rows, p.axis, _NEUTRAL[name]), *args[1:], **named)


def _require_norm(p: "Picked", name: str, args: Any, named: Any) -> None:
    order = named.get("p", named.get("ord", args[1] if len(args) > 1 else 2))
    if not (order in (None, "fro") or (isinstance(order, int | float) and order > 0)):
        raise p.refuse(f"{name} of the order {order}")


def _all(p: "Picked", axes: tuple[int, ...]) -> tuple[int, ...]:
    return axes or tuple(range(p.rows.dim()))


def _number(p: "Picked", axes: tuple[int, ...]) -> Any:
    """How many elements are summed into one."""
    return p.mask.count * prod(p.rows.shape[a] for a in _all(p, axes) if a != p.axis)


def _extreme(p: "Picked", name: str, axes: tuple[int, ...], keep: bool) -> Any:
    torch, last = p.torch, _NEUTRAL[_EXTREMES[name]]
    if not p.rows.is_floating_point():
        raise p.refuse(f"{name} of whole numbers among them")
    rows = p.mask.filled(p.rows, p.axis, last)  # equal ones share a gradient, of which copies would get some
    none = torch.full((), float("nan"), dtype=rows.dtype)
    if name in ("amax", "amin") or not axes:
        found = getattr(torch, _EXTREMES[name])(rows, _all(p, axes), keepdim=keep)
        return torch.where(p.mask.any, found, none)
    values, places = getattr(torch, name)(rows, axes[0], keepdim=keep)
    made = getattr(torch.return_types, name)
    return made((torch.where(p.mask.any, values, none), p.mask.places[places]))


def _place(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    if not p.rows.is_floating_point() or (not axes and p.rows.dim() > 1):
        raise p.refuse(f"{name} across them")
    rows = p.mask.filled(p.rows, p.axis, _NEUTRAL["amax" if name == "argmax" else "amin"])
    return p.mask.places[getattr(p.torch, name)(rows, p.axis, keepdim=keep)]


def _mean(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    rows = p.rows if named.get("dtype") is None else p.rows.to(named["dtype"])
    if not rows.is_floating_point():
        raise p.refuse("mean of whole numbers among them")
    total, number = p.mask.filled(rows, p.axis, 0).sum(_all(p, axes), keepdim=keep), _number(p, axes)
    none = p.torch.full((), float("nan"), dtype=rows.dtype)
    return p.torch.where(number > 0, total / number.clamp(min=1), none)  # no gradient of nothing is NaN


def _variance(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    args = named[""]
    unbiased = named.get("unbiased", next((a for a in args[1:] if isinstance(a, bool)), True))
    correction = named.get("correction", int(unbiased))
    keep, axes = bool(named.get("keepdim", args[3] if len(args) > 3 else False)), _all(p, axes)
    mean = _mean(p, "mean", axes, True, {})
    squares = p.mask.filled((p.rows - mean).square(), p.axis, 0).sum(axes, keepdim=keep)
    found = squares / (_number(p, axes) - correction).clamp(min=0)
    return found if name == "var" else found.sqrt()


def _softmax(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    if len(axes) != 1:
        raise p.refuse(f"{name} across no axis in particular")
    rows = p.mask.filled(p.rows, p.axis, float("-inf"))
    return p.like(p.mask.copied(getattr(p.torch, name)(rows, axes[0], dtype=named.get("dtype")), p.axis))


def _running(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    rows = p.rows if p.rows.is_floating_point() else p.rows.long()
    found = getattr(p.torch, name)(p.mask.filled(rows, p.axis, int(name == "cumprod")), p.axis)
    return p.like(p.mask.copied(found, p.axis))


def _normalised(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    args = named[""]
    order, least = named.get("p", args[1] if len(args) > 1 else 2.0), named.get("eps", 1e-12)
    _require_norm(p, name, (p, order), {})
    norms = p.torch.linalg.vector_norm(p.mask.filled(p.rows, p.axis, 0), order, axes, keepdim=True)
    return p.like(p.rows / norms.clamp_min(least))


def _order(p: "Picked", descending: bool) -> Any:
    """Where the rows are that come first, second, ..., in every column; what is not picked comes last."""
    torch, rows = p.torch, p.rows
    by_size = torch.argsort(rows.detach(), dim=p.axis, descending=descending, stable=True)
    others = (~p.mask.wide(rows.dim(), p.axis)).expand(rows.shape).long().gather(p.axis, by_size)
    return by_size.gather(p.axis, torch.argsort(others, dim=p.axis, stable=True))


def _sorted(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    args = named[""]
    given = [a for a in args[1:] if isinstance(a, bool)]
    order = _order(p, bool(named.get("descending", given[-1] if given else False)))
    mask = p.first_ones()
    places = p.like(mask.copied(p.mask.places[order], p.axis), mask=mask)
    if name == "argsort":
        return places
    values = p.like(mask.copied(p.rows.gather(p.axis, order), p.axis), mask=mask)
    return p.torch.return_types.sort((values, places))


def _median(p: "Picked", name: str, axes: tuple[int, ...], keep: bool, named: Any) -> Any:
    """The lower of the two in the middle."""
    if p.rows.dim() > 1 and not axes:
        p = p.reshape(-1)
    if p.rows.dim() > 1 or axes or not p.rows.is_floating_point():
        raise p.refuse("median across them")
    middle = ((p.mask.count - 1) // 2).clamp(min=0).reshape(1)
    found = p.rows.gather(0, _order(p, False).gather(0, middle)).reshape(())
    return p.torch.where(p.mask.any, found, p.torch.full((), float("nan"), dtype=p.rows.dtype))


_HANDLERS: dict[str, Callable[..., Any]] = {
    "mean": _mean, "var": _variance, "std": _variance, "softmax": _softmax, "log_softmax": _softmax,
    "cumsum": _running, "cumprod": _running, "normalize": _normalised, "sort": _sorted, "argsort": _sorted,
    "median": _median, "argmax": _place, "argmin": _place,
}  # fmt: skip


def batch_norm(
    p: "Picked",
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """As torch.nn.functional.batch_norm: mean and variance are those of the picked rows. Of a single one PyTorch says
    that it has no variance; here its running variance becomes NaN."""
    axes = tuple(a for a in range(p.rows.dim()) if a != 1)
    wide = [-1 if a == 1 else 1 for a in range(p.rows.dim())]
    mean, variance = running_mean, running_var
    if training:
        mean = _mean(p, "mean", axes, False, {})
        variance = _variance(p, "var", axes, False, {"": (), "correction": 0})
    if training and running_mean is not None:
        number = _number(p, axes)
        unbiased = variance.detach() * number / (number - 1)
        running_mean.copy_(running_mean * (1 - momentum) + momentum * mean.detach())
        running_var.copy_(running_var * (1 - momentum) + momentum * unbiased)
    found = (p.rows - mean.reshape(wide)) * (variance.reshape(wide) + eps).rsqrt()
    found = found if weight is None else found * weight.reshape(wide)
    return p.like(found if bias is None else found + bias.reshape(wide))
