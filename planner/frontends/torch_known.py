"""Numbers that are known where a module is exported: what forward computes of sizes, of buffers that it does not write
to, and of other constants. The export knows their shapes alone, so that masks among them (`x[~torch.eye(n).bool()]`),
Python's numbers (`int(self.count)`) and branches would be refused as dependent on data. Each is computed beside the
export, and where PyTorch asks for numbers they are given."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import equal, is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_figures import Figure
from planner.frontends.torch_left import is_left

LARGEST = 1 << 20
"""Elements; what is larger is not computed."""
_NUMBERS = frozenset({
    "item", "tolist", "numpy", "equal", "allclose", "is_nonzero",
    "__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__",
})  # fmt: skip
"""They return what is Python's."""
_SIZED = frozenset({
    "argwhere", "bincount", "masked_select", "nonzero", "one_hot", "repeat_interleave", "unique", "unique_consecutive",
})  # fmt: skip
"""The sizes of what they return depend on numbers."""
_TAKES_SIZES = frozenset({
    "expand", "flip", "movedim", "narrow", "new_ones", "new_zeros", "ones", "permute", "repeat", "reshape", "roll",
    "tile", "transpose", "unflatten", "view", "zeros",
})  # fmt: skip
"""Whole numbers among their arguments are sizes, axes and places: `x.permute(*order)`, where `order` is a tensor."""
_ALIKE = frozenset({"full_like", "new_full", "new_ones", "new_zeros", "ones_like", "zeros_like"})
"""What they return does not depend on their first argument's numbers."""
_UNSET = re.compile(r"empty|new_empty|new$|resize|set_|Tensor")
"""Functions that return, or make of a tensor, what nobody wrote."""


@contextmanager
def known_numbers(torch: Any, module: Any, prefix: str) -> Iterator[None]:
    """Within it, `module` can be exported. `prefix`: of the module's names, which errors leave out.

    SP1014: numbers of a buffer are asked for, and forward writes to it."""
    contents = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        # As they are while forward runs: the export has put others in their places.
        standing = {name: buffer for name, buffer in module.named_buffers() if name in contents}
        known = _Known(torch, {name.removeprefix(prefix): (b, contents[name]) for name, b in standing.items()})
        with _mode(torch, known.call):
            result = forward(*inputs, **named)
        now = dict(module.named_buffers())
        known.require_constant({n.removeprefix(prefix) for n, b in standing.items() if now.get(n) is not b})
        return result

    with forward_through(module, watched):
        yield


def _mode(torch: Any, call: Callable[[Any, Any, dict[str, Any]], Any]) -> Any:
    """Within it, every function of PyTorch's is call(function, args, kwargs)."""

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not is_recorded(torch):
                return function(*args, **(kwargs or {}))
            return call(function, args, kwargs or {})

    return Mode()


class _Number(NamedTuple):
    """A tensor's numbers, what they depend on of what was there before, and where they lie."""

    tensor: Any
    sources: frozenset[str]
    storage: int


def _number(tensor: Any, sources: frozenset[str] = frozenset()) -> _Number:
    return _Number(tensor, sources, int(tensor.untyped_storage()._cdata))


def _sources(operands: Iterable[_Number]) -> frozenset[str]:
    return frozenset[str]().union(*(n.sources for n in operands))


class _Known:
    """`buffers`: name -> (the tensor that stands for it during the export, its contents)."""

    def __init__(self, torch: Any, buffers: Mapping[str, tuple[Any, Any]]) -> None:
        from torch.utils.weak import WeakIdKeyDictionary

        self._torch = torch
        self._found: Any = WeakIdKeyDictionary()
        self._owner: dict[int, str] = {}
        """By storage: which buffer it stands for, or what else was there before."""
        self._asked: set[str] = set()
        self._written: set[str] = set()
        for name, (standing, contents) in buffers.items():
            if contents.numel() <= LARGEST:
                with self._aside():
                    self._hold(standing, contents.clone(), f"buffer {name!r}")

    def require_constant(self, replaced: Iterable[str]) -> None:
        changed = self._asked & (self._written | {f"buffer {name!r}" for name in replaced})
        if changed:
            what = f"the module's forward asks for numbers of its {min(changed)}, and writes to it"
            fix = "sizes, branches and Python numbers may not depend on the data: use torch.where, or tensors"
            raise UserError("SP1014", what, fix)

    def call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = getattr(function, "__name__", "")
        operands = self._operands((args[1:] if name in _ALIKE else args, kwargs))
        if operands and name == "__iter__":
            return iter(args[0].unbind(0))
        if operands and (name in _NUMBERS or self._sized(name, args)):
            real = self._asked_for(operands, function, args, kwargs)
            return real if name in _NUMBERS else self._constants(real, operands)
        both = name == "equal" and all(isinstance(x, self._torch.Tensor) for x in args[:2])
        told = equal(self._torch, *args[:2]) if both else None
        if told is not None:
            return told
        function, args, kwargs = self._picking(name, function, args, kwargs)
        args = self._with_sizes(name, args) if name in _TAKES_SIZES else args
        result = function(*args, **kwargs)
        written_to = writes(name, kwargs)
        written = self._tensors(kwargs["out"] if "out" in kwargs else args[:1]) if written_to else []
        touched = self._sharing(written)
        self._written.update(self._owner.get(n.storage, "") for n in touched.values())
        sources = _sources(operands or ())
        follows = operands is not None and not _UNSET.match(name) and (written_to or self._tensors(result))
        if follows and self._follow(result, function, args, kwargs, sources):
            self._found.update({t: n._replace(sources=n.sources | sources) for t, n in touched.items()})
        else:
            for tensor in touched:
                del self._found[tensor]
        return result

    # -- what is known ---------------------------------------------------------------------------------------------
    def _tensors(self, tree: Any) -> list[Any]:
        return [t for t in self._torch.utils._pytree.tree_leaves(tree) if isinstance(t, self._torch.Tensor)]

    def _operands(self, tree: Any) -> list[_Number] | None:
        """The numbers of all tensors; None where some are unknown, or a generator is among them."""
        torch = self._torch
        leaves = torch.utils._pytree.tree_leaves(tree)
        if any(isinstance(x, torch.Generator | torch.SymInt | torch.SymFloat | Figure) for x in leaves):
            return None
        found = [self._look_up(x) for x in leaves if isinstance(x, torch.Tensor)]
        return None if None in found else [n for n in found if n is not None]

    def _look_up(self, tensor: Any) -> _Number | None:
        torch = self._torch
        number: _Number | None = self._found.get(tensor)
        plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided  # neither the export's nor a parameter
        plain = plain and not is_left(tensor)
        if number is None and plain and tensor.numel() <= LARGEST and not torch._is_functional_tensor(tensor):
            with self._aside():
                self._hold(tensor, tensor.detach().clone(), f"tensor of {tuple(tensor.shape)}")
            number = self._found[tensor]
        return None if number is None or tensor.requires_grad else number

    def _hold(self, standing: Any, contents: Any, owner: str) -> None:
        self._found[standing] = held = _number(contents, frozenset({owner}))
        self._owner[held.storage] = owner

    def _sharing(self, tensors: list[Any]) -> dict[Any, _Number]:
        """What is known and lies where these lie."""
        places = {n.storage for t in tensors for n in [self._found.get(t)] if n is not None}
        return {t: n for t, n in list(self._found.items()) if n.storage in places} if places else {}

    # -- computing beside the export -------------------------------------------------------------------------------
    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Within it, nothing is exported."""
        from torch.utils._python_dispatch import _disable_current_modes

        with _disable_current_modes(), self._torch._C.DisableTorchFunction():
            yield

    def _asked_for(self, operands: list[_Number], function: Any, args: Any, kwargs: Any) -> Any:
        self._asked |= _sources(operands)
        with self._aside():
            return function(*self._real(args), **self._real(kwargs))

    def _real(self, tree: Any) -> Any:
        def of(x: Any) -> Any:
            if not isinstance(x, self._torch.Tensor):
                return x
            number = self._found.get(x)
            return self._torch.empty(x.shape, dtype=x.dtype) if number is None else number.tensor

        return self._torch.utils._pytree.tree_map(of, tree)

    def _follow(self, result: Any, function: Any, args: Any, kwargs: Any, sources: frozenset[str]) -> bool:
        """The same beside the export. Not if the result is too large or drawn; then nothing is known of it."""
        made, generator = self._tensors(result), self._torch.default_generator
        if any(not isinstance(d, int) for t in made for d in t.shape) or any(t.numel() > LARGEST for t in made):
            return False
        with self._aside():
            before = generator.get_state()
            try:
                real = self._tensors(function(*self._real(args), **self._real(kwargs)))
                if not self._tensors((args, kwargs)):  # an array's memory is the program's constant's as well
                    real = [numbers.clone() for numbers in real]
            except Exception:  # what the export has a way around
                return False
            if not self._torch.equal(generator.get_state(), before):
                generator.set_state(before)
                return False
        if [(t.shape, t.dtype) for t in made] != [(t.shape, t.dtype) for t in real]:
            return False
        self._found.update({t: _number(numbers, sources) for t, numbers in zip(made, real, strict=True)})
        return True

    def _constants(self, real: Any, operands: list[_Number]) -> Any:
        """Tensors of these numbers, in the exported program."""
        sources = _sources(operands)

        def constant(numbers: Any) -> Any:
            if not isinstance(numbers, self._torch.Tensor):
                return numbers
            with self._aside():
                own = numbers.clone()  # forward may write to it; the numbers themselves are the program's constant
            made = numbers.clone()
            self._found[made] = _number(own, sources)
            return made

        return self._torch.utils._pytree.tree_map(constant, real)

    # -- indices ---------------------------------------------------------------------------------------------------
    def _sized(self, name: str, args: Any) -> bool:
        if name == "__getitem__":
            return any(self._is_mask(i) for i in _indices(args))
        return name in _SIZED or (name == "where" and len(args) == 1)

    def _is_mask(self, index: Any) -> bool:
        return isinstance(index, self._torch.Tensor) and index.dtype is self._torch.bool and index.dim() > 0

    def _picking(self, name: str, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
        """The call with whole numbers in place of known masks and of tensors of one number."""
        torch = self._torch
        if name == "__getitem__" or (
            name == "__setitem__" and isinstance(args[2], torch.Tensor) and args[2].numel() > 1
        ):
            found = [whole for index in _indices(args) for whole in self._whole(index)]
            return function, (args[0], tuple(found), *args[2:]), kwargs
        mask = self._look_up(args[1]) if name == "masked_select" and len(args) == 2 else None
        if mask is not None:
            x, wide = torch.broadcast_tensors(*args)
            with self._aside():
                places = _number(mask.tensor.expand(wide.shape), mask.sources)
            return torch.Tensor.__getitem__, (x, tuple(self._places(places))), kwargs
        return function, args, kwargs

    def _with_sizes(self, name: str, args: Any) -> Any:
        """With whole numbers in place of known tensors of one; not of what has the sizes, which comes first."""
        first = 0 if name in ("ones", "zeros") else 1
        found = [a if type(a) in (list, tuple) else [a] for a in args[first:]]
        whole = [[self._whole(x)[0] for x in part] for part in found]
        return (
            *args[:first],
            *(w if type(a) in (list, tuple) else w[0] for a, w in zip(args[first:], whole, strict=True)),
        )

    def _places(self, mask: _Number) -> list[Any]:
        """Where it is true: whole numbers for every axis."""
        self._asked.update(mask.sources)
        with self._aside():
            places = mask.tensor.nonzero(as_tuple=True)
        return list(self._constants(places, [mask]))

    def _whole(self, index: Any) -> list[Any]:
        torch = self._torch
        if isinstance(index, slice):
            return [slice(*(self._whole(part)[0] for part in (index.start, index.stop, index.step)))]
        if isinstance(index, list) and all(isinstance(i, bool) for i in torch.utils._pytree.tree_leaves(index)):
            with self._aside():
                listed = torch.tensor(index)
            return self._places(_number(listed))
        number = self._look_up(index) if isinstance(index, torch.Tensor) else None
        if number is None:
            return [index]
        if self._is_mask(index):
            return self._places(number)
        if index.dim() == 0 and not index.dtype.is_floating_point and index.dtype is not torch.bool:
            return [self._asked_for([number], torch.Tensor.item, (index,), {})]
        return [index]


def _indices(args: Any) -> tuple[Any, ...]:
    return args[1] if isinstance(args[1], tuple) else (args[1],)


def writes(name: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether a function of this name writes to its first argument, or to what it is given for its results."""
    in_place = name.endswith("_") and not name.endswith("__")
    operator = name.startswith("__i") and name not in ("__int__", "__index__", "__iter__", "__invert__")
    return in_place or operator or name in ("__setitem__", "__set__") or kwargs.get("out") is not None
