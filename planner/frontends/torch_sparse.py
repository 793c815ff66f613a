"""Sparse matrices of constants, as graph networks and interpolations hold them in buffers or attributes. PyTorch
exports none of them: while a module is exported, an object with places and values stands for each, and for those that
forward makes of tensors. Their products are rows that are picked, weighted and added up, of which graph/messages.py
makes products of sparse matrices."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_places import here
from planner.frontends.torch_slots import REGISTERED

_FIX = "multiply it with a tensor by @, torch.mm, torch.sparse.mm or torch.bmm, or make it dense: to_dense()"
_AS_IT_IS = frozenset({"coalesce", "detach", "contiguous", "cpu", "clone", "requires_grad_"})


@contextmanager
def sparse_constants(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported. SP1017: a parameter is sparse."""
    changed = list[tuple[Any, dict[str, Any], dict[str, Any]]]()
    for path, part in module.named_modules():
        for name, parameter in part._parameters.items():
            if is_sparse(torch, parameter):
                problem = f"parameter {f'{path}.{name}'.lstrip('.')!r} is a sparse tensor"
                raise UserError("SP1017", problem, "train its values as a dense parameter of one dimension")
        buffers = dict(part._buffers)
        own = {name: x for name, x in vars(part).items() if name not in REGISTERED}
        standing = {name: _standing(torch, x) for name, x in (buffers | own).items()}
        held = {name: x for name, x in (buffers | own).items() if standing[name] is not x}
        if held:
            changed.append((part, buffers, held))
            vars(part).update({name: standing[name] for name in held})
            for name in buffers.keys() & held.keys():
                del part._buffers[name]
    make = torch.sparse_coo_tensor
    try:
        torch.sparse_coo_tensor = _maker(torch, make)
        yield
    finally:
        torch.sparse_coo_tensor = make
        for part, buffers, held in changed:
            now = dict(part._buffers)
            part._buffers.clear()
            part._buffers.update({name: now.get(name, x) for name, x in buffers.items()} | now)
            vars(part).update({name: x for name, x in held.items() if name not in buffers})
            for name in buffers.keys() & held.keys():
                vars(part).pop(name, None)


def sparse_input() -> UserError:
    instead = "pass its places and values, and make it in forward: torch.sparse_coo_tensor(places, values, size)"
    return UserError(
        "SP1017", "an example input is a sparse tensor", f"hold it in a buffer of the module, or {instead}"
    )


def _standing(torch: Any, held: Any) -> Any:
    """What stands for a sparse tensor, or a list or dict of some; anything else is itself."""
    if type(held) in (list, tuple, dict):
        parts = held if isinstance(held, dict) else dict(enumerate(held))
        made = {key: _standing(torch, x) for key, x in parts.items()}
        if all(made[key] is x for key, x in parts.items()):
            return held
        return made if isinstance(held, dict) else type(held)(made.values())
    return Sparse.of(torch, held) if is_sparse(torch, held) else held


def _maker(torch: Any, original: Callable[..., Any]) -> Callable[..., Any]:
    def sparse_coo_tensor(indices: Any, values: Any, size: Any = None, *rest: Any, **named: Any) -> Any:
        if not is_recorded(torch):
            return original(indices, values, size, *rest, **named)
        if size is None:
            raise UserError("SP1014", f"a sparse tensor's size is made of data{here()}", "pass its size as well")
        numbers = torch.as_tensor(values)
        numbers = numbers.to(named["dtype"]) if named.get("dtype") is not None else numbers
        return Sparse(torch, tuple(size), torch.as_tensor(indices), numbers, torch.sparse_coo, False)

    return sparse_coo_tensor


def is_sparse(torch: Any, x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.layout is not torch.strided


class Sparse:
    """`places`: a row of them per dimension; `numbers`: one per place. `ordered`: whether places are in order, each
    once; products and sums do not depend on that."""

    requires_grad = False

    def __init__(
        self, torch: Any, shape: tuple[int, ...], places: Any, numbers: Any, layout: Any, ordered: bool = True
    ) -> None:
        self._torch, self._places, self._numbers, self._ordered = torch, places, numbers, ordered
        self.shape, self.layout, self.dtype, self.device = torch.Size(shape), layout, numbers.dtype, numbers.device
        self.ndim, self.is_sparse = len(shape), layout is torch.sparse_coo

    @classmethod
    def of(cls, torch: Any, x: Any) -> "Sparse":
        with torch.no_grad():
            rows = x.detach().to_sparse_coo().coalesce()
        return cls(torch, tuple(x.shape), rows.indices().clone(), rows.values().clone(), x.layout)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, found = getattr(function, "__name__", "").strip("_"), next((a for a in args if isinstance(a, cls)), None)
        if found is None:  # among the keywords
            raise _unknown(name)
        known = _FUNCTIONS.get(name.removeprefix("sparse_"))
        if known is None:
            raise _unknown(name)
        return known(*args, **(kwargs or {}))

    def __matmul__(self, other: Any) -> Any:
        return _product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _product(other, self)

    def __mul__(self, factor: Any) -> "Sparse":
        if isinstance(factor, Sparse) or (isinstance(factor, self._torch.Tensor) and factor.numel() != 1):
            raise _unknown("mul")
        return self._like(self._numbers * factor)

    __rmul__ = __mul__

    def transpose(self, first: int, second: int) -> "Sparse":
        order = list(range(self.ndim))
        order[first], order[second] = order[second], order[first]
        shape = tuple(self.shape[i] for i in order)
        return Sparse(self._torch, shape, self._places[order], self._numbers, self.layout, False)

    def t(self) -> "Sparse":
        return self.transpose(0, 1)

    T = mT = property(t)

    def to_dense(self) -> Any:
        dense = self._numbers.new_zeros(tuple(self.shape))
        return dense.index_put(tuple(self._places), self._numbers, accumulate=not self._ordered)

    def sum(self, dim: Any = None, dtype: Any = None) -> Any:
        if dim is None:
            return self._numbers.sum()
        gone = {d % self.ndim for d in ((dim,) if isinstance(dim, int) else dim)}
        left = [d for d in range(self.ndim) if d not in gone]
        shape = tuple(self.shape[d] for d in left)
        return Sparse(self._torch, shape, self._places[left], self._numbers, self.layout, False)

    def size(self, dimension: int | None = None) -> Any:
        return self.shape if dimension is None else self.shape[dimension]

    def dim(self) -> int:
        return self.ndim

    def indices(self) -> Any:
        return self._in_order(self._places)

    def values(self) -> Any:
        return self._in_order(self._numbers)

    def _in_order(self, part: Any) -> Any:
        if not self._ordered:
            raise _unknown("the order of places")
        return part

    _indices, _values = indices, values

    def _nnz(self) -> int:
        return int(self._places.shape[1])

    def is_coalesced(self) -> bool:
        return self._ordered

    def to(self, *given: Any, **named: Any) -> "Sparse":
        return self._like(self._numbers.to(*given, **named))

    def _like(self, numbers: Any) -> "Sparse":
        return Sparse(self._torch, tuple(self.shape), self._places, numbers, self.layout, self._ordered)

    def float(self) -> "Sparse":
        return self.to(self._torch.float32)

    def __getattr__(self, name: str) -> Any:
        if name in _AS_IT_IS:
            return lambda *given: self
        if name.startswith("__") or not hasattr(object.__getattribute__(self, "_torch").Tensor, name):
            raise AttributeError(name)
        raise _unknown(name)


def _product(a: Any, b: Any) -> Any:
    """Of a sparse matrix, or one per batch, and a dense one, in either order."""
    if isinstance(a, Sparse) and isinstance(b, Sparse):
        raise _unknown("a product with another one")
    if isinstance(b, Sparse):
        dense = a.unsqueeze(0) if a.dim() == 1 else a
        found = _product(b.transpose(-2, -1), dense.transpose(-2, -1)).transpose(-2, -1)
        return found.squeeze(0) if a.dim() == 1 else found
    x = b.unsqueeze(1) if b.dim() == 1 else b
    if x.dim() != a.ndim or a.shape[-1] != x.shape[-2] or a.shape[:-2] != x.shape[:-2] or a.ndim > 3:
        raise _unknown(f"a product of {tuple(a.shape)} and {tuple(b.shape)}")
    *batch, rows, columns = a.shape
    target, source = a._places[-2], a._places[-1]
    if batch:
        target, source = a._places[0] * rows + target, a._places[0] * columns + source
    picked = x.reshape(-1, x.shape[-1]).index_select(0, source) * a._numbers.unsqueeze(1)
    total = picked.new_zeros(((batch[0] if batch else 1) * rows, x.shape[-1]))
    found = total.index_add(0, target, picked).reshape(*batch, rows, x.shape[-1])
    return found.squeeze(1) if b.dim() == 1 else found


def _sum_and_product(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return x * beta + _product(a, b) * alpha


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "mv", "smm", "spmm"), _product),
    "rmatmul": lambda a, x: _product(x, a),
    "addmm": _sum_and_product,
    "to_dense": Sparse.to_dense,
    "t": Sparse.t,
    "transpose": Sparse.transpose,
    "mul": lambda a, b: a * b,
    "sum": Sparse.sum,
}


def _unknown(what: str) -> UserError:
    return UserError("SP1017", f"{what} of a sparse tensor is not known{here()}", _FIX)
