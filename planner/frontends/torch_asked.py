"""What forward asks of tensors of data while a module is exported: numbers, whose place figures take, and whether a
check of them holds, which a plan cannot know."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_branches import Branches
from planner.frontends.torch_builtins import functions_of_figures
from planner.frontends.torch_checked import asking, unchecked
from planner.frontends.torch_figures import ASKED, PLAIN, BranchAsked, Figure, NumberAsked
from planner.frontends.torch_places import bracketed, calling_line, here

LISTED = 1024
"""Elements; of what is larger no list is made."""
_CHECKS = frozenset({"_assert", "_check", "_check_is_size", "_check_tensor_all", "_check_value", "_check_with"})
_MADE = frozenset({"as_tensor", "new_tensor", "scalar_tensor", "tensor"})


class Asked:
    """What forward asked of numbers of data. `checks`: its lines that do so to check; `returned`: which leaves of its
    result are Python's numbers."""

    def __init__(self, torch: Any, branches: Branches) -> None:
        self.checks, self.returned = list[str](), set[int]()
        self._torch, self._branches = torch, branches

    def told(self) -> Iterator[UserError]:
        for line in dict.fromkeys(self.checks):
            problem = (
                f"the module's forward checks numbers of data{bracketed(line)}: a plan goes on as if all were well"
            )
            yield UserError("SP1014", problem, "check the inputs before a step, or the loss behind it")

    def truth(self, x: Any) -> bool:
        """What Python is told of a tensor of one number. SP1014: nothing can be."""
        frame = asking(sys._getframe())
        well = unchecked(frame)
        if well is not None:
            self.checks.append(calling_line())
            return well
        taken = self._branches.taken(x, frame)
        if taken is None:
            fix = "compute both sides and choose by torch.where, or by max and min; or leave it to the caller"
            error = BranchAsked("SP1014", f"a branch depends on numbers of data{here()}", fix)
            error.frame = frame
            raise error
        return taken

    # -- functions that ask: NotImplemented where PyTorch is to say what it thinks of them -------------------------
    def of(self, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        if name == "allclose":
            return Figure(self._torch, self._torch.isclose(*args, **kwargs).all())
        if name == "__contains__":
            return Figure(self._torch, (x == args[1]).any())
        if name == "tolist":
            return NotImplemented if x.numel() > LISTED else self._list(x)
        if x.numel() != 1 or (x.dim() and name == "__format__"):
            return NotImplemented
        if name == "__bool__":
            return self.truth(x)
        figure = Figure(self._torch, x)
        return str(figure) if name == "__format__" else figure

    def _list(self, x: Any) -> Any:
        return [self._list(part) for part in x.unbind(0)] if x.dim() else Figure(self._torch, x)


_ASKING = frozenset({"__bool__", "__contains__", "__format__", "allclose", "is_nonzero", "item", "tolist"})


@contextmanager
def asked_numbers(torch: Any, module: Any, branches: Branches, among: Sequence[dict[str, Any]]) -> Iterator[Asked]:
    """Within it, `module` can be exported. `among`: global names in which float and int are to know figures.

    SP1014: a branch depends on data that neither checks nor only writes, or a size does."""
    asked = Asked(torch, branches)

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        before = ASKED.set(asked.truth)
        try:
            with _mode(torch, asked), functions_of_figures(torch, among):
                result = forward(*inputs, **named)
        finally:
            ASKED.reset(before)
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
                found = asked.of(name, args, kwargs) if name in _ASKING else NotImplemented
                if found is not NotImplemented:
                    return found
                if name in PLAIN:
                    return _plain(name, function, args, kwargs)
            if name in _MADE and any(isinstance(x, Figure) for x in torch.utils._pytree.tree_leaves(args)):
                return _made(torch, *args[name == "new_tensor" :], **kwargs)
            return function(*args, **kwargs)

    return Mode()


def _plain(name: str, function: Any, args: Any, kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except Exception as error:
        raise NumberAsked(name) from error


def _made(torch: Any, data: Any, **kwargs: Any) -> Any:
    """A tensor of numbers and figures, as PyTorch makes one of numbers: of its own, which may be written to."""
    if isinstance(data, list | tuple):
        made = torch.stack([_made(torch, part) for part in data])
    else:
        made = data.tensor if isinstance(data, Figure) else torch.tensor(data)
    made = made.to(kwargs.get("dtype") or made.dtype, copy=True)
    return made.requires_grad_() if kwargs.get("requires_grad") else made
