"""`NArray`: an array whose operations are recorded. Operators and methods follow NumPy's names and rules."""

import math
from collections.abc import Iterable
from typing import Any, NoReturn, Protocol

import numpy as np

from planner.errors import UserError
from planner.narray.record import Number, Record
from planner.ops.base import Array

Axes = int | Iterable[int] | None


class Owner(Protocol):
    """What arrays belong to: a session, a network being written, a function being recorded."""

    lazy: str
    """Why its arrays may have no value; empty where they get one when asked."""

    def given(self, data: Array, label: str = "") -> Record: ...
    def record(self, name: str, operands: tuple[Any, ...], label: str = "") -> Record: ...
    def run(self) -> None: ...


class NArray:
    """A lazy array of float32 (or of int64 class numbers). Operators broadcast by NumPy's rules. It never changes:
    `a -= b` makes `a` another array."""

    __array_priority__ = 1000
    __array_ufunc__ = None
    """Makes NumPy leave `ndarray + NArray` to this class."""

    __slots__ = ("_record",)

    def __init__(self, record: Record) -> None:
        self._record = record
        record.handles += 1

    def __del__(self) -> None:
        self._record.handles -= 1

    @property
    def shape(self) -> tuple[int, ...]:
        return self._record.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self._record.dtype)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __repr__(self) -> str:
        record = self._record
        short = {"float32": "f32", "int64": "i64"}.get(record.dtype, record.dtype)
        return f"NArray({record.label or record.name or 'given'}: {short}[{','.join(map(str, self.shape))}])"

    def named(self, label: str) -> "NArray":
        """The same array; its node in the plan gets this name, from which an input's or result's is made."""
        self._record.label = label
        return self

    # -- values ------------------------------------------------------------------------------------------------
    def to_numpy(self) -> Array:
        """The value, which is computed now if it is not there yet. A view that cannot be written to."""
        record = self._record
        if record.data is None:
            owner: Owner = record.owner  # type: ignore[assignment]
            if owner.lazy:
                raise UserError("SP1021", f"{self!r} has no value yet", owner.lazy)
            owner.run()
        if record.data is None:
            raise UserError(
                "SP1021", f"{self!r} belongs to a session that has ended", "ask for values before the next one begins"
            )
        view = record.data.view()
        view.flags.writeable = False
        return view

    def wait(self) -> "NArray":
        """Computes the value now, if it is not there yet."""
        self.to_numpy()
        return self

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        found = np.asarray(self.to_numpy(), dtype)
        return found.copy() if copy else found

    def item(self) -> float:
        """The value of an array of one element."""
        return float(self.to_numpy().reshape(-1)[0]) if self.size == 1 else self._no_single()

    def _no_single(self) -> NoReturn:
        raise UserError("SP1021", f"{self!r} is not one number", "reduce it, or use to_numpy()")

    def __float__(self) -> float:
        return self.item()

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        self._require_value()
        return self.shape[0]

    def __iter__(self) -> Any:
        self._require_value()
        return iter(self.to_numpy())

    def _require_value(self) -> None:
        owner: Owner = self._record.owner  # type: ignore[assignment]
        if owner.lazy and self._record.data is None:
            raise UserError("SP1021", f"{self!r} has no value yet", owner.lazy)

    # -- recording ---------------------------------------------------------------------------------------------
    def _do(self, name: str, *operands: Any) -> "NArray":
        """An operation on this array; operands are arrays, numbers and fixed arguments."""
        return do(name, self, *operands)

    def _with(self, name: str, number: str, other: Any, inverse: Any = float) -> "NArray":
        if is_number(other):
            return do(number, self, Number(inverse(other)))
        return do(name, self, operand(self, other))

    def __add__(self, other: Any) -> "NArray":
        return self._with("add", "shift", other)

    def __sub__(self, other: Any) -> "NArray":
        return self._with("sub", "shift", other, lambda n: -n)

    def __mul__(self, other: Any) -> "NArray":
        return self._with("mul", "scale", other)

    def __truediv__(self, other: Any) -> "NArray":
        return self._with("div", "scale", other, lambda n: 1 / n if n else math.copysign(math.inf, n))

    def __pow__(self, exponent: float) -> "NArray":
        return do("power", self, float(exponent))

    def __matmul__(self, other: Any) -> "NArray":
        return do("matmul", self, operand(self, other))

    def __rmatmul__(self, other: Any) -> "NArray":
        return do("matmul", operand(self, other), self)

    def __rsub__(self, other: Any) -> "NArray":
        return -self + other if is_number(other) else do("sub", operand(self, other), self)

    def __rtruediv__(self, other: Any) -> "NArray":
        return do("reciprocal", self) * other if is_number(other) else do("div", operand(self, other), self)

    def __neg__(self) -> "NArray":
        return do("neg", self)

    def __abs__(self) -> "NArray":
        return do("abs", self)

    __radd__, __rmul__ = __add__, __mul__

    def __getitem__(self, index: Any) -> "NArray":
        """Integers and slices, one per leading dimension."""
        parts: list[int | tuple[int, int, int]] = []
        for axis, part in enumerate(index if isinstance(index, tuple) else (index,)):
            if axis >= self.ndim or not isinstance(part, int | np.integer | slice):
                raise UserError("SP1021", f"an NArray cannot be indexed with {part!r}", "use integers and slices")
            if not isinstance(part, slice) and not -self.shape[axis] <= part < self.shape[axis]:
                problem = f"index {part} lies beyond the {self.shape[axis]} elements of axis {axis}"
                raise UserError("SP1021", problem, "count from 0, or back from -1")
            parts.append(part.indices(self.shape[axis]) if isinstance(part, slice) else int(part))
        return do("index", self, tuple(parts))

    # -- shapes and reductions ---------------------------------------------------------------------------------
    @property
    def T(self) -> "NArray":
        return self.transpose()

    def transpose(self, *axes: int) -> "NArray":
        self.require_axes(*axes)
        return do("transpose", self, axes or tuple(range(self.ndim))[::-1])

    def reshape(self, *shape: Any) -> "NArray":
        return do("reshape", self, _sizes(shape))

    def ravel(self) -> "NArray":
        return self.reshape(self.size)

    def sum(self, axis: Axes = None, keepdims: bool = False) -> "NArray":
        return self._reduced("sum", axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> "NArray":
        return self._reduced("mean", axis, keepdims)

    def max(self, axis: Axes = None, keepdims: bool = False) -> "NArray":
        return self._reduced("max", axis, keepdims)

    def _reduced(self, name: str, axis: Axes, keepdims: bool) -> "NArray":
        axes = _axes(axis)
        self.require_axes(*axes or ())
        return self if axes == () else do(name, self, axes, keepdims)

    def require_axes(self, *axes: int) -> None:
        wrong = next((a for a in axes if not -self.ndim <= a < self.ndim), None)
        if wrong is not None:
            problem = f"{self!r} has no axis {wrong}"
            raise UserError("SP1002", problem, f"name one of its {self.ndim} axes: from 0, or back from -1")

    def argmax(self, axis: int = -1) -> "NArray":
        """The first place of the maximum along one dimension, as float32."""
        self.require_axes(int(axis))
        return do("argmax", self, int(axis))


def do(name: str, *operands: Any) -> NArray:
    """Record an operation. Its arrays have one owner (SP1021)."""
    arrays = [o._record for o in operands if isinstance(o, NArray)]
    owner: Owner = arrays[0].owner  # type: ignore[assignment]
    if any(r.owner is not owner for r in arrays):
        raise UserError(
            "SP1021", "arrays of two recorders meet", "write one network with one recorder, pass arrays to a step"
        )
    return NArray(owner.record(name, tuple(o._record if isinstance(o, NArray) else o for o in operands)))


def operand(beside: NArray, other: Any) -> NArray:
    """The other operand of an operator: an array, or data that becomes one."""
    if isinstance(other, NArray):
        return other
    owner: Owner = beside._record.owner  # type: ignore[assignment]
    return NArray(owner.given(with_elements(np.array(other, np.float32))))


def with_elements(data: Array) -> Array:
    if not data.size:
        raise UserError(
            "SP1002", f"an array of shape {data.shape} has no elements", "use at least one in each dimension"
        )
    return data


def is_number(value: Any) -> bool:
    return isinstance(value, bool | int | float | np.number)


def _axes(axis: Axes) -> tuple[int, ...] | None:
    return None if axis is None else (int(axis),) if isinstance(axis, int | np.integer) else tuple(map(int, axis))


def _sizes(shape: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape
    return tuple(map(int, sizes))
