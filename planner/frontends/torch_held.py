"""Parameters and buffers that a module also holds in lists, tuples and dicts of its own. The export puts others in
their places, but not there, where they would be constants without a gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_slots import REGISTERED


@contextmanager
def held_again(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported: while forward runs, lists and dicts hold what stands for their tensors."""
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
        for part in module.modules():
            for name, held in list(vars(part).items()):
                if name not in REGISTERED:
                    made = exchanged(held, standing)
                    if made is not held:
                        before.append((vars(part), name, held))
                        vars(part)[name] = made
        try:
            return forward(*inputs, **given)
        finally:
            for attributes, name, held in before:
                attributes[name] = held

    with forward_through(module, watched):
        yield


def _tensors(module: Any) -> Iterator[tuple[str, Any]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
