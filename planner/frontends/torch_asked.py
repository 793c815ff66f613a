"""What forward asks of tensors of data while a module is exported: numbers, whose place figures take, and whether a
check of them holds, which a plan cannot know."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_builtins import functions_of_figures
from planner.frontends.torch_figures import PLAIN, Figure, NumberAsked
from planner.frontends.torch_places import bracketed, calling_line

LISTED = 1024
"""Elements; of what is larger no list is made."""
_CHECKS = frozenset({"_assert", "_check", "_check_is_size", "_check_tensor_all", "_check_value", "_check_with"})
_MADE = frozenset({"as_tensor", "new_tensor", "scalar_tensor", "tensor"})


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
def asked_numbers(torch: Any, module: Any, among: Sequence[dict[str, Any]] = ()) -> Iterator[Asked]:
    """Within it, `module` can be exported. `among`: global names in which float and int are to know figures.

    SP1014: a branch that is no check depends on data, or a size does."""
    asked = Asked([], set())

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with _mode(torch, asked.checks), functions_of_figures(torch, among):
            result = forward(*inputs, **named)
        leaves, structure = torch.utils._pytree.tree_flatten(result)
        asked.returned.clear()
        asked.returned.update(place for place, leaf in enumerate(leaves) if isinstance(leaf, Figure))
        plain = [leaf.tensor if isinstance(leaf, Figure) else leaf for leaf in leaves]
        return torch.utils._pytree.tree_unflatten(plain, structure)

    with forward_through(module, watched):
        yield asked


def _mode(torch: Any, checks: list[str]) -> Any:
    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name, kwargs = getattr(function, "__name__", ""), kwargs or {}
            if not is_recorded(torch):
                return function(*args, **kwargs)
            if name in _CHECKS and args and isinstance(args[0], Figure | torch.Tensor):
                checks.append(calling_line())
                return None
            if args and isinstance(args[0], torch.Tensor) and not args[0].is_complex():
                asks = _ASKING.get(name)
                if asks is not None:
                    found = asks(torch, checks, *args, **kwargs)
                    return function(*args, **kwargs) if found is NotImplemented else found
                if name in PLAIN:
                    return _plain(name, function, args, kwargs)
            if name in _MADE and any(isinstance(x, Figure) for x in torch.utils._pytree.tree_leaves(args)):
                return _made(torch, *args[name == "new_tensor" :], **kwargs)
            return function(*args, **kwargs)

    return Mode()


def _item(torch: Any, checks: list[str], x: Any) -> Any:
    return Figure(torch, checks, x) if x.numel() == 1 else NotImplemented


def _list(torch: Any, checks: list[str], x: Any) -> Any:
    if x.numel() > LISTED:
        return NotImplemented
    return [_list(torch, checks, part) for part in x.unbind(0)] if x.dim() else Figure(torch, checks, x)


def _truth(torch: Any, checks: list[str], x: Any) -> Any:
    return bool(Figure(torch, checks, x)) if x.numel() == 1 else NotImplemented


def _text(torch: Any, checks: list[str], x: Any, form: str) -> Any:
    return NotImplemented if x.dim() else format(Figure(torch, checks, x), form)


def _contained(torch: Any, checks: list[str], x: Any, element: Any) -> Any:
    return Figure(torch, checks, (x == element).any())


def _close(torch: Any, checks: list[str], *args: Any, **kwargs: Any) -> Any:
    return Figure(torch, checks, torch.isclose(*args, **kwargs).all())


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
        raise NumberAsked(name) from error


def _made(torch: Any, data: Any, **kwargs: Any) -> Any:
    """A tensor of numbers and figures, as PyTorch makes one of numbers."""
    if isinstance(data, list | tuple):
        made = torch.stack([_made(torch, part) for part in data])
    else:
        made = data.tensor if isinstance(data, Figure) else torch.tensor(data)
    return made.to(kwargs.get("dtype") or made.dtype)
