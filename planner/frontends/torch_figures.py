"""Python's numbers of data, `mask.sum().item()`: a Figure stands for each while a module is exported, and computes as
Python's would, in tensors without axes or gradients. What is divided by it, compared with it or returned is in the
program then. Branches cannot be; those that only check go on as if all were well, which is told (torch_branches.py)."""

import builtins
import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from numbers import Real
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_branches import asking, unchecked
from planner.frontends.torch_places import bracketed, calling_line, here

LISTED = 1024
"""Elements; of what is larger no list is made."""
_CHECKS = frozenset({"_assert", "_check", "_check_is_size", "_check_tensor_all", "_check_value", "_check_with"})
_MADE = frozenset({"as_tensor", "new_tensor", "scalar_tensor", "tensor"})
_FILLED = frozenset({"full", "full_like", "new_full"})
_PLAIN = {"__float__": "float()", "__int__": "int()", "__index__": "a size, an index or a range", "numpy": "numpy()"}
"""What Python's or NumPy's numbers are made by, and nothing can stand for."""
_FIX = "leave it a tensor, or call item(), of which a plan has the arithmetic, max and min; sizes are fixed"


class _Branch(UserError):
    """SP1014 where the truth of a number is asked."""


class Asked(NamedTuple):
    """What forward asked of numbers of data. `checks`: its lines that do so to check; `returned`: which leaves of its
    result are Python's numbers."""

    checks: list[str]
    returned: set[int]

    def told(self) -> Iterator[UserError]:
        for line in dict.fromkeys(self.checks):
            problem = (
                f"the module's forward checks numbers of data{bracketed(line)}: a plan goes on as if all were well"
            )
            yield UserError("SP1014", problem, "check the inputs before a step, or the loss behind it")


@contextmanager
def figures(torch: Any, module: Any) -> Iterator[Asked]:
    """Within it, `module` can be exported. SP1014: a branch that is no check depends on data, or a size does."""
    asked = Asked([], set())

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with _mode(torch, asked), _extremes(torch):
            result = forward(*inputs, **named)
        leaves, structure = torch.utils._pytree.tree_flatten(result)
        asked.returned.clear()
        asked.returned.update(place for place, leaf in enumerate(leaves) if isinstance(leaf, Figure))
        plain = [leaf.tensor if isinstance(leaf, Figure) else leaf for leaf in leaves]
        return torch.utils._pytree.tree_unflatten(plain, structure)

    with forward_through(module, watched):
        yield asked


def _mode(torch: Any, asked: Asked) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if not is_recorded(torch):
                return function(*args, **kwargs)
            if name in _CHECKS and args and isinstance(args[0], Figure | torch.Tensor):
                asked.checks.append(calling_line())
                return None
            if args and isinstance(args[0], torch.Tensor) and not args[0].is_complex():
                asks = _ASKING.get(name)
                if asks is not None:
                    found = asks(torch, asked, *args, **kwargs)
                    return function(*args, **kwargs) if found is NotImplemented else found
                if name in _PLAIN:
                    return _plain(name, function, args, kwargs)
            if name in _MADE and any(isinstance(x, Figure) for x in torch.utils._pytree.tree_leaves(args)):
                return _made(torch, *args[name == "new_tensor" :], **kwargs)
            return function(*args, **kwargs)

    return Mode()


def _item(torch: Any, asked: Asked, x: Any) -> Any:
    return Figure(torch, asked, x) if x.numel() == 1 else NotImplemented


def _list(torch: Any, asked: Asked, x: Any) -> Any:
    if x.numel() > LISTED:
        return NotImplemented
    return [_list(torch, asked, part) for part in x.unbind(0)] if x.dim() else Figure(torch, asked, x)


def _truth(torch: Any, asked: Asked, x: Any) -> Any:
    return bool(Figure(torch, asked, x)) if x.numel() == 1 else NotImplemented


def _text(torch: Any, asked: Asked, x: Any, form: str) -> Any:
    return NotImplemented if x.dim() else format(Figure(torch, asked, x), form)


def _contained(torch: Any, asked: Asked, x: Any, element: Any) -> Any:
    return Figure(torch, asked, (x == element).any())


def _close(torch: Any, asked: Asked, *args: Any, **kwargs: Any) -> Any:
    return Figure(torch, asked, torch.isclose(*args, **kwargs).all())


_ASKING: dict[str, Callable[..., Any]] = {
    "item": _item,
    "tolist": _list,
    "is_nonzero": _item,
    "__bool__": _truth,
    "__format__": _text,
    "__contains__": _contained,
    "allclose": _close,
}


def _plain(name: str, function: Any, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise UserError("SP1014", f"{_PLAIN[name]} is made of numbers of data{here()}", _FIX) from error


def _made(torch: Any, data: Any, **kwargs: Any) -> Any:
    """A tensor of numbers and figures, as PyTorch makes one of numbers."""
    if isinstance(data, list | tuple):
        made = torch.stack([_made(torch, part) for part in data])
    else:
        made = data.tensor if isinstance(data, Figure) else torch.tensor(data)
    return made.to(kwargs.get("dtype") or made.dtype)


class Figure:
    """In the place of a Python number. `tensor`: without axes, of bool, int64 or float32."""

    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None

    def __init__(self, torch: Any, asked: Asked, x: Any) -> None:
        kind = x.dtype if x.dtype is torch.bool else torch.float32 if x.is_floating_point() else torch.int64
        self._torch, self._asked, self.tensor = torch, asked, x.detach().reshape(()).to(kind)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch = next(x for x in _leaves(args, kwargs) if isinstance(x, Figure))._torch
        name, given = getattr(function, "__name__", ""), dict(kwargs or {})
        if name in _FILLED:
            return _filled(torch, name, args, given)
        if "alpha" in given:  # of sums and differences
            args = (args[0], args[1] * given.pop("alpha"), *args[2:])
        plain = torch.utils._pytree.tree_map(lambda x: x.tensor if isinstance(x, Figure) else x, (args, given))
        return function(*plain[0], **plain[1])

    def _with(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        other = right if left is self else left
        if isinstance(other, self._torch.Tensor):
            return function(*(x._number() if x is self else x for x in (left, right)))
        if not isinstance(other, Real | Figure):
            return NotImplemented
        operands = [x._number() if isinstance(x, Figure) else x for x in (left, right)]
        if function is operator.pow and not (isinstance(right, int) and right >= 0):
            operands[0] = float(operands[0]) if operands[0] is left else operands[0].float()
        return Figure(self._torch, self._asked, function(*operands))

    def _number(self) -> Any:
        """Its tensor; Python's truths are whole numbers."""
        return self.tensor.long() if self.tensor.dtype is self._torch.bool else self.tensor

    def _of(self, function: Callable[[Any], Any]) -> "Figure":
        return Figure(self._torch, self._asked, function(self._number()))

    def __neg__(self) -> "Figure":
        return self._of(operator.neg)

    def __pos__(self) -> "Figure":
        return self._of(operator.pos)

    def __abs__(self) -> "Figure":
        return self._of(operator.abs)

    def __round__(self, digits: int | None = None) -> "Figure":
        if not self.tensor.is_floating_point():
            return self
        rounded = self._of(lambda x: x.round(decimals=digits or 0))
        return rounded if digits is not None else rounded._of(lambda x: x.long())

    def __bool__(self) -> bool:
        found = unchecked(asking(sys._getframe()))
        if found is None:
            fix = "compute both sides and choose by torch.where, or leave the branch to the module's caller"
            raise _Branch("SP1014", f"a branch depends on numbers of data{here()}", fix)
        self._asked.checks.append(calling_line())
        return found

    def __format__(self, form: str) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"({str(self.tensor.dtype).removeprefix('torch.')} of data)"

    def __float__(self) -> float:
        raise self._refuse("__float__")

    def __int__(self) -> int:
        raise self._refuse("__int__")

    def __index__(self) -> int:
        raise self._refuse("__index__")

    def _refuse(self, name: str) -> UserError:
        return UserError("SP1014", f"{_PLAIN[name]} is made of numbers of data{here()}", _FIX)


def _operators() -> None:
    """Gives figures the operators of numbers, also as right operands."""
    reflected = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
    for name in (*reflected, "eq", "ne", "lt", "le", "gt", "ge"):
        function = getattr(operator, name)
        setattr(Figure, f"__{name}__", lambda self, other, f=function: self._with(f, self, other))
        if name in reflected:
            setattr(Figure, f"__r{name}__", lambda self, other, f=function: self._with(f, other, self))


_operators()


def _leaves(args: Any, kwargs: Any) -> Iterator[Any]:
    for part in (*args, *(kwargs or {}).values()):
        yield from part if isinstance(part, list | tuple) else (part,)


def _filled(torch: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    """As full, full_like and new_full do with a number."""
    given, like = (*args, *kwargs.values()), args[0]
    value = next(x for x in given if isinstance(x, Figure)).tensor
    size = like.shape if name == "full_like" else next(x for x in given if isinstance(x, tuple | list))
    return value.to(kwargs.get("dtype") or (value if name == "full" else like).dtype).expand(tuple(size)).clone()


@contextmanager
def _extremes(torch: Any) -> Iterator[None]:
    """Within it, Python's max and min choose between numbers of data by torch.where, the first of equal ones."""

    def choosing(original: Callable[..., Any], better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        def chosen(*args: Any, **kwargs: Any) -> Any:
            if kwargs:
                return original(*args, **kwargs)
            items = list(args[0]) if len(args) == 1 else list(args)
            try:
                return original(items)
            except _Branch:
                return reduce(lambda a, b: _chosen(torch, better(b, a), b, a), items)

        return chosen

    kept = builtins.max, builtins.min
    builtins.max, builtins.min = choosing(kept[0], operator.gt), choosing(kept[1], operator.lt)
    try:
        yield
    finally:
        builtins.max, builtins.min = kept


def _chosen(torch: Any, condition: Any, a: Any, b: Any) -> Any:
    """a where the condition holds, else b."""
    if isinstance(condition, bool):
        return a if condition else b
    made = torch.where(*(x.tensor if isinstance(x, Figure) else x for x in (condition, a, b)))
    return made if any(map(torch.is_tensor, (a, b))) else Figure(torch, condition._asked, made)
