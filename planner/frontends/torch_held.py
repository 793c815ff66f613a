"""Parameters and buffers that a module also holds elsewhere: in lists, tuples and dicts of its own, in objects that are
no modules (Keras's variables), in what a function closes over. The export puts others in their places, but not there,
where they would be constants without a gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_lists import indexed
from planner.frontends.torch_slots import REGISTERED


@contextmanager
def held_again(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported: while forward runs, lists and dicts hold what stands for their tensors, and
    functions are called with that in the place of those that forward finds elsewhere."""
    tree = torch.utils._pytree
    named = {id(t): name for name, t in _tensors(module)}

    def exchanged(held: Any, standing: dict[str, Any]) -> Any:
        """The same with what stands for its tensors; itself where it holds none."""
        if isinstance(held, torch.Tensor):
            return standing.get(named.get(id(held), ""), held)
        if type(held) not in (list, tuple, dict):
            return held
        parts = list(held.values() if isinstance(held, dict) else held)
        found = [exchanged(part, standing) for part in parts]
        if all(a is b for a, b in zip(parts, found, strict=True)):
            return held
        return dict(zip(held, found, strict=True)) if isinstance(held, dict) else type(held)(found)

    def watched(forward: Callable[..., Any], *inputs: Any, **given: Any) -> Any:
        standing, before = dict(_tensors(module)), []

        class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
            def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                called = indexed(torch, function, args), kwargs or {}
                if is_recorded(torch) and any(id(x) in named for x in tree.tree_leaves(called)):
                    called = tree.tree_map(lambda x: standing.get(named.get(id(x), ""), x), called)
                return function(*called[0], **called[1])

        for part in module.modules():
            for name, held in list(vars(part).items()):
                if name not in REGISTERED:
                    made = exchanged(held, standing)
                    if made is not held:
                        before.append((vars(part), name, held))
                        vars(part)[name] = made
        try:
            with Mode():
                return forward(*inputs, **given)
        finally:
            for attributes, name, held in before:
                attributes[name] = held

    with forward_through(module, watched):
        yield


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
