"""Rows that a mask of data picks, `loss[mask].mean()`: how many there are is not known where a module is exported, so
PyTorch refuses them. Here all rows go on, and what was not picked counts nothing in the end.

    x[mask]                    Picked: the rows of x, in place of those that are not picked a copy of the first that is
    functions of single rows   the same of all rows; so nothing is computed of numbers that were not to be looked at,
                               such as the logarithm of zero, and no gradient of it is infinite
    sums, means, losses        of the picked rows; means are divided by their number
    out[mask] = rows           the picked rows, and what is there elsewhere

Where nothing is picked a mean is NaN, as in PyTorch, and a sum is 0; so is a largest or smallest number NaN, of which
PyTorch says that there is none. Whatever else is computed of such rows is refused (SP1014)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import equal, is_recorded, node_of
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_places import bracketed, calling_line
from planner.frontends.torch_writes import is_changed

_ELEMENTS = frozenset({
    "abs", "absolute", "add", "and", "atan2", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bool",
    "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip", "clone", "contiguous", "cos", "cosh", "deg2rad",
    "detach", "div", "divide", "double", "elu", "eq", "erf", "exp", "expm1", "float", "floor", "floordiv", "fmod",
    "ge", "gelu", "greater", "greater_equal", "gt", "hardswish", "hardtanh", "invert", "isfinite", "isinf", "isnan",
    "le", "leaky_relu", "less", "less_equal", "log", "log10", "log1p", "log2", "logaddexp", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "logsigmoid", "long", "lt", "maximum", "minimum", "mish",
    "mod", "mul", "multiply", "nan_to_num", "ne", "neg", "negative", "or", "pow", "radd", "rand", "rdiv",
    "reciprocal", "relu", "relu6", "remainder", "rfloordiv", "rmul", "ror", "round", "rpow", "rsqrt", "rsub",
    "rtruediv", "selu", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "softsign", "sqrt", "square", "sub",
    "subtract", "tan", "tanh", "threshold", "to", "true_divide", "truediv", "type_as", "where", "xlogy", "xor",
})  # fmt: skip
"""Functions of single elements, also as operators: `__radd__`."""
_ROWS = {
    "softmax": 1, "log_softmax": 1, "logsumexp": 1, "sum": 1, "mean": 1, "prod": 1, "amax": 1, "amin": 1, "max": 1,
    "min": 1, "argmax": 1, "argmin": 1, "all": 1, "any": 1, "cumsum": 1, "unsqueeze": 1, "norm": 2, "vector_norm": 2,
    "linalg_norm": 2, "linalg_vector_norm": 2, "normalize": 2, "cosine_similarity": 2, "gather": 1, "select": 1,
    "squeeze": 1,
}  # fmt: skip
"""Functions of the axis that has this place among their arguments."""
_ALONG_LAST = {"normalize": 1, "cosine_similarity": 1}
"""The axis that these have if none is given."""
_EXTREMES = frozenset({"amax", "amin", "max", "min"})
_WEIGHTED = frozenset({"linear", "layer_norm", "rms_norm", "embedding"})
"""Of the last axes, with weights that are no rows."""
_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_WITH_WEIGHTS = _CLASSES | {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
"""Losses that take weights as their third argument. Others divide by the sum of theirs."""
_LOSSES = _WITH_WEIGHTS | {
    "gaussian_nll_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss",
    "soft_margin_loss",
}  # fmt: skip
_FIX = (
    "rows that a mask picks go through functions of single rows, and sums, means and losses of these; multiply by the "
    "mask instead, or use torch.where"
)


@contextmanager
def picked_rows(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported. SP1014: more is done with what a mask picks than is known here, or forward
    returns it."""

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with _mode(torch):
            result = forward(*inputs, **named)
        for part in torch.utils._pytree.tree_leaves(result):
            if isinstance(part, Picked):
                raise part.refuse("forward returns them", part.made_at)
        return result

    with forward_through(module, watched):
        yield


def _mode(torch: Any) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if not is_recorded(torch):
                return function(*args, **kwargs)
            if name == "masked_select" and len(args) == 2 and args[0].shape == args[1].shape:
                return Picked(torch, *args)
            mask = _mask(torch, args[1]) if name in ("__getitem__", "__setitem__") else None
            if mask is None or not isinstance(args[0], torch.Tensor):
                return function(*args, **kwargs)
            if name == "__getitem__":
                return Picked(torch, args[0], mask)
            return args[2].put_into(args[0], mask) if isinstance(args[2], Picked) else function(*args, **kwargs)

    return Mode()


def _mask(torch: Any, index: Any) -> Any:
    """The mask that an index is, if it is one alone, or before axes that are taken whole."""
    alone = isinstance(index, tuple) and index and all(_is_whole(i) for i in index[1:])
    whole = index[0] if alone else index
    return whole if isinstance(whole, torch.Tensor) and whole.dtype is torch.bool and whole.dim() > 0 else None


def _is_whole(index: Any) -> bool:
    return index is Ellipsis or (isinstance(index, slice) and index == slice(None))


class Picked:
    """In the place of a tensor (picked rows, ...). `rows`: all rows, flat; `mask`: which of them are picked."""

    def __init__(self, torch: Any, x: Any, mask: Any) -> None:
        self._torch, self._origin, self.made_at = torch, mask, calling_line()
        axes = mask.dim()
        if tuple(x.shape[:axes]) != tuple(mask.shape):
            what = f"The shape of the mask {list(mask.shape)} does not match that of the tensor {list(x.shape)}"
            raise IndexError(what)
        rest = tuple(x.shape[axes:])
        self.mask = mask.reshape(-1)
        flat = x.reshape(mask.numel(), *rest)
        first = self.mask.long().argmax(0, keepdim=True)
        self.rows = torch.where(self._wide(flat), flat, flat.detach().index_select(0, first))

    def _wide(self, rows: Any) -> Any:
        return self.mask.reshape(-1, *(1 for _ in range(rows.dim() - 1)))

    def _like(self, rows: Any) -> "Picked":
        made = object.__new__(Picked)
        made.__dict__.update(self.__dict__, rows=rows)
        return made

    def _same(self, mask: Any) -> bool:
        """Whether a mask picks the same rows."""
        if mask is not self._origin:
            return bool(equal(self._torch, mask, self._origin))
        return not is_changed({node_of(mask)} - {None})

    # -- as a tensor -----------------------------------------------------------------------------------------------
    def __getattr__(self, name: str) -> Any:
        """A method of tensors."""
        if name.startswith("__"):
            raise AttributeError(name)
        torch = self._torch
        if name in ("dtype", "device", "layout", "is_floating_point", "is_complex", "requires_grad"):
            return getattr(self.rows, name)
        if name in ("dim", "ndimension"):
            return self.rows.dim
        if name == "ndim":
            return self.rows.dim()
        method = getattr(torch.Tensor, name, None)
        if not callable(method):
            raise self.refuse(f"{name} of them is asked for")
        return lambda *args, **kwargs: self._call(method, (self, *args), kwargs)

    @property
    def shape(self) -> Any:
        return _Shape(self)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def __len__(self) -> int:
        raise self.refuse("their number is asked for")

    def numel(self) -> int:
        raise self.refuse("their number is asked for")

    def __bool__(self) -> bool:
        raise self.refuse("a branch depends on them")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves: list[Picked] = [x for x in (*args, *(kwargs or {}).values()) if isinstance(x, Picked)]
        if not leaves:
            found = next(x for part in args if isinstance(part, list | tuple) for x in part if isinstance(x, Picked))
            raise found.refuse(f"{getattr(function, '__name__', function)} of several")
        return leaves[0]._call(function, args, kwargs or {})

    def refuse(self, what: str, place: str = "") -> UserError:
        where = bracketed(place or calling_line())
        return UserError("SP1014", f"a mask of data picks rows, whose number depends on the data: {what}{where}", _FIX)

    # -- functions -------------------------------------------------------------------------------------------------
    def _call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", str(function))
        plain = name.strip("_")
        in_place = name.endswith("_") and not name.startswith("_")
        if name == "__getitem__":
            return self._item(function, args)
        if plain in ("view", "reshape", "flatten", "ravel") and not kwargs:
            return self._reshaped(args[1:], plain)
        if plain in _LOSSES:
            return self._loss(function, plain, args, kwargs)
        two = plain in _EXTREMES and len(args) > 1 and not isinstance(args[1], int | tuple | list)
        if plain in _ROWS and not in_place and not two:
            return self._along(function, plain, args, kwargs)
        if two or (plain in _ELEMENTS and not in_place):
            found = self._elements(plain, (*args, *kwargs.values()))
            named = dict(zip(kwargs, found[len(args) :], strict=True))
            return self._like(function(*found[: len(args)], **named))
        if plain in _WEIGHTED and isinstance(args[0], Picked) and self.rows.dim() > (plain != "embedding"):
            rest = (*args[1:], *kwargs.values())
            if any(isinstance(x, Picked) for x in rest):
                raise self.refuse(f"{plain} with weights that are such rows")
            return self._like(function(args[0].rows, *args[1:], **kwargs))
        by_matrix = plain == "matmul" and args[0] is self and self._torch.is_tensor(args[1]) and args[1].dim() <= 2
        if by_matrix and self.rows.dim() > 1:
            return self._like(function(self.rows, args[1]))
        raise self.refuse(f"{plain or name} of them")

    def _elements(self, name: str, args: Any, alike: bool = True) -> list[Any]:
        """Operands in whole: rows that the same mask picks, all with as many axes if they are `alike`, and what is the
        same for all rows."""
        found = []
        for x in args:
            if isinstance(x, Picked):
                self._require_same(x, name)
                x = x.rows
            elif self._torch.is_tensor(x) and (x.dim(), *x.shape[:1]) > (self.rows.dim(), 1):
                raise self.refuse(f"{name} with a tensor of shape {tuple(x.shape)}")
            found.append(x)
        ranks = {x.dim() for x, given in zip(found, args, strict=True) if isinstance(given, Picked)}
        if alike and len(ranks) > 1:
            raise self.refuse(f"{name} of rows with different numbers of axes")
        return found

    def _require_same(self, other: "Picked", name: str) -> None:
        if other.mask is not self.mask and not self._same(other._origin):
            raise self.refuse(f"{name} of rows that different masks pick")
        if other.rows.shape[0] != self.rows.shape[0]:
            raise self.refuse(f"{name} of rows and of their elements")

    def _item(self, function: Any, args: Any) -> "Picked":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        whole = index[0] is Ellipsis and len(index) <= self.rows.dim()
        of_data = any(isinstance(i, Picked) or self._torch.is_tensor(i) for i in index)
        if of_data or not (whole if index[0] is Ellipsis else _is_whole(index[0])):
            raise self.refuse("some of them are looked at")
        return self._like(function(self.rows, index))

    def _reshaped(self, to: Any, name: str) -> "Picked":
        to = tuple(to[0]) if len(to) == 1 and isinstance(to[0], tuple | list) else tuple(to)
        rest = tuple(self.rows.shape[1:])
        if name in ("view", "reshape") and len(to) > 1 and to[0] == -1 and prod(to[1:]) == prod(rest):
            return self._like(self.rows.reshape(self.rows.shape[0], *to[1:]))
        flat = to in ((), (0,)) if name in ("flatten", "ravel") else to == (-1,)
        if name == "flatten" and to[:1] == (1,):
            return self._like(self.rows.flatten(*to))
        if not flat:
            raise self.refuse(f"{name} to {to}")
        if not rest:
            return self
        made = self._like(self.rows.reshape(-1))
        made.mask = self._wide(self.rows).expand(self.rows.shape).reshape(-1)
        return made

    # -- what becomes of all ---------------------------------------------------------------------------------------
    def _along(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        place = _ROWS[name]
        given = dict(kwargs)
        axis = given.pop("dim", given.pop("axis", args[place] if len(args) > place else _ALONG_LAST.get(name)))
        by_name = [*kwargs.values()]
        if any(isinstance(x, Picked) for x in by_name) or any(map(self._torch.is_tensor, (*args, *by_name))):
            raise self.refuse(f"{name} with rows by name, or with a tensor that is none")
        rows, rank = self._elements(name, [x for x in args if isinstance(x, Picked)]), self.rows.dim()
        axes = axis if isinstance(axis, tuple | list) else (axis,)
        if axis is None or any(a % (rank + (name == "unsqueeze")) == 0 for a in axes):
            if name == "unsqueeze" or (axis is not None and len(axes) > 1) or len(rows) > 1:
                raise self.refuse(f"{name} across them")
            keep = given.pop("keepdim", args[place + 1] if len(args) > place + 1 else False)
            return self._reduced(name, axis is None, keep, given)
        whole = [x.rows if isinstance(x, Picked) else x for x in args]
        found = function(*whole, **kwargs)
        if isinstance(found, tuple):
            return type(found)(self._like(part) for part in found)
        return self._like(found)

    def _reduced(self, name: str, everything: bool, keep: bool, rest: dict[str, Any]) -> Any:
        """Over the rows, or all of their elements."""
        torch, rows, wide = self._torch, self.rows, self._wide(self.rows)
        dims = tuple(range(rows.dim())) if everything else (0,)
        if rest or (name in ("max", "min") and not everything):
            raise self.refuse(f"{name} of them, with {', '.join(rest) or 'places'}")
        if name == "sum" or (name == "mean" and rows.is_floating_point()):
            rows = rows if rows.is_floating_point() else rows.long()
            total = torch.where(wide, rows, torch.zeros((), dtype=rows.dtype)).sum(dims, keepdim=keep)
            each = prod(rows.shape[1:]) if everything else 1
            return total if name == "sum" else total / (self.mask.sum() * each)
        if name in _EXTREMES and rows.is_floating_point():
            largest = name in ("amax", "max")
            last = torch.full((), float("-inf" if largest else "inf"), dtype=rows.dtype)
            rows = torch.where(wide, rows, last)  # equal ones share a gradient, of which copies would get some
            found = (torch.amax if largest else torch.amin)(rows, dims, keepdim=keep)
            return torch.where(self.mask.any(), found, torch.full((), float("nan"), dtype=rows.dtype))
        if name in ("all", "any") and everything and not keep:
            return (rows.bool() | ~wide).all() if name == "all" else (rows.bool() & wide).any()
        raise self.refuse(f"{name} across them")

    def _loss(self, function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        reduction, most = kwargs.get("reduction", "mean"), 2 + (name in _WITH_WEIGHTS)
        if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None or len(args) > most:
            raise self.refuse(f"{name} with more arguments in order, or reduce")
        if kwargs.get("weight") is not None and name not in _WITH_WEIGHTS:
            raise self.refuse(f"{name} with weights")
        target = args[1] if len(args) > 1 else kwargs["target"]
        if not isinstance(target, Picked) or not isinstance(args[0], Picked):
            raise self.refuse(f"{name} of them and of other rows")
        self._require_same(target, name)
        given = {k: x for k, x in kwargs.items() if k not in ("reduction", "target")}
        own, *others = self._elements(name, (args[0], *args[2:]), alike=False)
        rest = dict(zip(given, self._elements(name, (*given.values(),), alike=False), strict=True))
        if name in _CLASSES and not target.rows.is_floating_point():
            if reduction == "none":
                return self._like(function(own, target.rows, *others, **rest, reduction="none"))
            ignored = rest.get("ignore_index", -100)
            labels = self._torch.where(target._wide(target.rows), target.rows, ignored)
            return function(own, labels, *others, **rest, reduction=reduction)
        found = self._like(function(own, target.rows, *others, **rest, reduction="none"))
        if reduction == "none":
            return found
        if reduction == "batchmean":
            return found.sum() / self.mask.sum()
        return found.sum() if reduction == "sum" else found.mean()

    def put_into(self, out: Any, mask: Any) -> None:
        """out[mask] = these."""
        if not self._same(mask) or self.rows.shape[0] != mask.numel():
            raise self.refuse("they are put where another mask picks")
        if self.rows.dim() - 1 != out.dim() - mask.dim():
            raise self.refuse("they are put where rows have other axes")
        rows = self.rows.reshape(*mask.shape, *self.rows.shape[1:])
        wide = mask.reshape(*mask.shape, *(1 for _ in range(out.dim() - mask.dim())))
        out.copy_(self._torch.where(wide, rows.to(out.dtype), out))


def _operator(name: str) -> Callable[..., Any]:
    def method(self: Picked, *args: Any) -> Any:
        return self._call(getattr(self._torch.Tensor, name), (self, *args), {})

    return method


for _name in (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "pow",
    "rpow", "neg", "abs", "invert", "and", "or", "xor", "matmul", "eq", "ne", "lt", "le", "gt", "ge", "getitem",
):  # fmt: skip
    setattr(Picked, f"__{_name}__", _operator(f"__{_name}__"))


class _Shape(tuple[Any, ...]):
    """Of picked rows: how many there are may not be asked."""

    _of: Picked

    def __new__(cls, of: Picked) -> "_Shape":
        made = super().__new__(cls, of.rows.shape)
        made._of = of
        return made

    def __getitem__(self, index: Any) -> Any:
        found = tuple(range(len(self)))[index]
        if found == 0 or (isinstance(found, tuple) and 0 in found):
            len(self._of)
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        len(self._of)
        return super().__iter__()
