"""Python's numbers of data, `mask.sum().item()`: a Figure stands for each while a module is exported, and computes as
Python's would, in tensors without axes or gradients. What is divided by it, compared with it or returned is in the
program then. What its truth is, is asked of its tensor (torch_asked.py)."""

import operator
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import reduce
from numbers import Real
from types import FrameType
from typing import Any, cast

import numpy as np

from planner.errors import UserError
from planner.frontends.torch_checked import asking
from planner.frontends.torch_places import here, is_own

_FILLED = frozenset({"full", "full_like", "new_full"})
PLAIN = {"__float__": "float()", "__int__": "int()", "__index__": "a size, an index or a range", "numpy": "numpy()"}
"""What Python's or NumPy's numbers are made by, and nothing can stand for."""
_FIX = "leave it a tensor, or call item(), of which a plan has the arithmetic, max and min; sizes are fixed"


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "negative": operator.neg,
    "absolute": operator.abs, "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt,
    "less_equal": operator.le, "greater": operator.gt, "greater_equal": operator.ge,
}  # fmt: skip
"""By the names of NumPy's functions, Python's."""
_FUNCTIONS = frozenset({
    "ceil", "cos", "exp", "exp2", "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2",
    "maximum", "minimum", "sin", "sqrt", "square", "tan", "tanh",
})  # fmt: skip
"""NumPy's that PyTorch has by the same name."""

ASKED: ContextVar[Callable[[Any], bool]] = ContextVar("ASKED")
"""What Python is told of a tensor of one number, or BranchAsked: of what is exported now."""


class BranchAsked(UserError):
    """SP1014 where the truth of a number is asked. `frame`: where."""

    frame: FrameType | None = None


class NumberAsked(UserError):
    """SP1014 where Python's number itself is asked. `names`: the global names of the user's code that asks by float()
    or int(); None of other code."""

    def __init__(self, name: str) -> None:
        super().__init__("SP1014", f"{PLAIN[name]} is made of numbers of data{here()}", _FIX)
        frame = asking(sys._getframe())
        own = frame is not None and is_own(frame.f_code.co_filename) and name in ("__float__", "__int__")
        self.names = frame.f_globals if frame is not None and own else None


class Figure:
    """In the place of a Python number. `tensor`: without axes, of bool, int64 or float32."""

    def __init__(self, torch: Any, x: Any) -> None:
        kind = x.dtype if x.dtype is torch.bool else torch.float32 if x.is_floating_point() else torch.int64
        self.torch, self.tensor = torch, x.detach().reshape(()).to(kind)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch = next(x for x in _leaves(args, kwargs) if isinstance(x, Figure)).torch
        name, given = getattr(function, "__name__", ""), dict(kwargs or {})
        if name in _FILLED:
            return _filled(torch, name, args, given)
        if name == "roll":
            return _rolled(torch, *args, **given)
        if "alpha" in given:  # of sums and differences
            args = (args[0], args[1] * given.pop("alpha"), *args[2:])
        bounds = name.rstrip("_") in ("clamp", "clip")  # both are tensors, or none is

        def plain(x: Any) -> Any:
            number = bounds and isinstance(x, Real) and not isinstance(x, bool)
            return x.tensor if isinstance(x, Figure) else torch.tensor(x) if number else x

        args, given = torch.utils._pytree.tree_map(plain, (args, given))
        return function(*args, **given)

    def __array_ufunc__(self, function: Any, method: str, *operands: Any, **named: Any) -> "Figure":
        """NumPy's functions of single numbers. SP1014: another function, or one of arrays."""
        name = function.__name__
        plain = [x.item() if isinstance(x, np.generic | np.ndarray) and not x.ndim else x for x in operands]
        if method == "__call__" and not named and all(isinstance(x, Real | Figure) for x in plain):
            if name in _OPERATORS:
                return cast(Figure, _OPERATORS[name](*plain))
            if name in _FUNCTIONS:
                tensors = [x._number() if isinstance(x, Figure) else self.torch.tensor(x) for x in plain]
                kind = reduce(self.torch.promote_types, (t.dtype for t in tensors))
                return self.like(getattr(self.torch, name)(*(t.to(kind) for t in tensors)))
        raise UserError("SP1014", f"NumPy's {name} is called with a number of data{here()}", _FIX)

    def like(self, x: Any) -> "Figure":
        return Figure(self.torch, x)

    def _with(self, function: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        other = right if left is self else left
        if isinstance(other, self.torch.Tensor):
            return function(*(x._number() if x is self else x for x in (left, right)))
        if not isinstance(other, Real | Figure):
            return NotImplemented
        operands = [x._number() if isinstance(x, Figure) else x for x in (left, right)]
        if function is operator.pow and not (isinstance(right, int) and right >= 0):
            operands[0] = float(operands[0]) if operands[0] is left else operands[0].float()
        return self.like(function(*operands))

    def _number(self) -> Any:
        """Its tensor; Python's truths are whole numbers."""
        return self.tensor.long() if self.tensor.dtype is self.torch.bool else self.tensor

    def of(self, function: Callable[[Any], Any]) -> "Figure":
        return self.like(function(self._number()))

    def __hash__(self) -> int:
        return id(self)

    def __mul__(self, other: Any) -> Any:
        return self._with(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(operator.mul, other, self)

    def __neg__(self) -> "Figure":
        return self.of(operator.neg)

    def __pos__(self) -> "Figure":
        return self.of(operator.pos)

    def __abs__(self) -> "Figure":
        return self.of(operator.abs)

    def as_float(self) -> "Figure":
        return self.of(lambda x: x.float())

    def as_int(self) -> "Figure":
        """Without its fraction, as int() of it."""
        return self.of(lambda x: x.trunc().long() if x.is_floating_point() else x)

    def __round__(self, digits: int | None = None) -> "Figure":
        if not self.tensor.is_floating_point():
            return self
        rounded = self.of(lambda x: x.round(decimals=digits or 0))
        return rounded if digits is not None else rounded.as_int()

    def __bool__(self) -> bool:
        return ASKED.get()(self.tensor)

    def __format__(self, form: str) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"({str(self.tensor.dtype).removeprefix('torch.')} of data)"

    def __float__(self) -> float:
        raise NumberAsked("__float__")

    def __int__(self) -> int:
        raise NumberAsked("__int__")

    def __index__(self) -> int:
        raise NumberAsked("__index__")


def _operators() -> None:
    """Gives figures the operators of numbers, also as right operands."""
    reflected = ("add", "sub", "truediv", "floordiv", "mod", "pow")
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


def _rolled(torch: Any, x: Any, shifts: Any, dims: Any = ()) -> Any:
    """As roll does by numbers: the rows that are so many before each."""
    shifts, dims = (tuple(g) if isinstance(g, tuple | list) else (g,) for g in (shifts, () if dims is None else dims))
    if not dims:
        return _rolled(torch, x.reshape(-1), shifts, 0).reshape(x.shape)
    for shift, axis in zip(shifts, dims, strict=True):
        places = torch.arange(x.shape[axis]) - (shift.tensor if isinstance(shift, Figure) else shift)
        x = x.index_select(axis, places % x.shape[axis])
    return x
