"""Numbers in forward that a plan has otherwise: Python's own stay as they were while the module was captured, and those
that PyTorch would draw again and again after the same seed, or from another generator, are the executor's."""

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_figures import Figure

SEED = 0x5EED_0F_7E5741
"""One that no forward chooses."""


@contextmanager
def numbers(torch: Any, module: Any, original: Any) -> Iterator[list[UserError]]:
    """Within it, `module` can be exported, which is `original` or has it as a part. Yields what is to be told behind
    it, SP1014: that forward draws from Python's or NumPy's generator, changes a number or a flag in an attribute, or
    seeds PyTorch's generator. Whether what it computes depends on that, nothing here can tell."""
    found, own = list[UserError](), torch.default_generator

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        before, drawn, state = _numbers(original), _generators(), own.get_state()
        own.manual_seed(SEED)
        try:
            result = forward(*inputs, **named)
            seeded = own.initial_seed() != SEED
        finally:
            own.set_state(state)
        sources = [name for name, state in _generators().items() if state != drawn[name]]
        now = _numbers(original)
        changed = [name for name, number in now.items() if before.get(name, number) != number]
        flags = [name for name in changed if now[name] in ("True", "False")]
        counted = [name for name in changed if name not in flags]
        if sources:
            found.append(_fixed(f"draws numbers from {' and '.join(sources)}", "draw them with torch.rand"))
        if counted:
            found.append(_fixed(f"changes the number in its attribute {counted[0]!r}", "hold it in a buffer"))
        if flags:
            once = "call the module once before it is captured"
            found.append(_fixed(f"changes the flag in its attribute {flags[0]!r}", once))
        if seeded:
            found.append(_drawn_anew("seeds PyTorch's generator"))
        return result

    with forward_through(module, watched):
        yield found


def of_generators(program: Any) -> list[UserError]:
    """The same where an exported program draws from a generator that forward makes, or that the module holds."""
    return [_drawn_anew("draws from a generator of its own") for n in program.graph.nodes if n.kwargs.get("generator")]


def tell(found: Iterable[UserError]) -> None:
    """Each once, as warnings."""
    for text in dict.fromkeys(map(str, found)):
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _fixed(what: str, instead: str) -> UserError:
    problem = f"the module's forward {what}: in a plan it stays what it was while the module was captured"
    return UserError("SP1014", problem, f"{instead}, or pass it as an input; if nothing depends on it, all is well")


def _drawn_anew(what: str) -> UserError:
    problem = f"the module's forward {what}: an executor draws from its own, other numbers in every step"
    return UserError("SP1014", problem, "hold numbers that stay in a buffer; if they are to be drawn anew, all is well")


def _generators() -> dict[str, Any]:
    """The states of those that are Python's and not PyTorch's."""
    kind, keys, position, *_ = np.random.get_state(legacy=True)
    return {"random": random.getstate(), "numpy.random": (kind, np.asarray(keys).tobytes(), position)}


def _numbers(module: Any) -> dict[str, str]:
    """Those and flags by name, as text: NaN is what it was. Not the mode, which is set again behind the export."""
    return {
        f"{path}.{name}".lstrip("."): repr(held)
        for path, part in module.named_modules()
        for name, held in vars(part).items()
        if isinstance(held, int | float | Figure) and name != "training"
    }
