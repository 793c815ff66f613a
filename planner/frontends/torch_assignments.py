"""What a module's forward assigns to its attributes.

A buffer that is assigned anew keeps its tensor during the export and gets the new contents at the end of forward, as if
they had been written into it: torch.export would drop what submodules assign, and take one buffer for another where
some are None. A tensor that one step replaces for the next, in an ordinary attribute or wherever Python holds it
(torch_slots.py), is refused: to an exported program it is a constant. What is left where there was nothing is looked at
in another pass (torch_left.py). A buffer that is not saved, and not read before it is assigned anew, as potentials of
membranes are, is no more than a variable of forward, and may change its shape. What the export itself leaves is taken
out again.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_left import Left, generators, is_same, kept, read_constants, tensor_of, varies
from planner.frontends.torch_slots import Slots, put
from planner.frontends.torch_writes import reads_contents

ONCE = "or call the module once before it is captured"


class Assigned:
    """What forward did to attributes. `left`: what it left where there was nothing, of which the next pass may make
    something."""

    def __init__(self) -> None:
        self.replaced: dict[str, Any] = {}
        """In attributes, and in buffers that are not saved: name -> the tensor before."""
        self.left: Left | None = None


@contextmanager
def assignments(torch: Any, module: Any, prefix: str) -> Iterator[Assigned]:
    """Within it, `module` can be exported. Yields what forward did. `prefix`: of the module's names, which errors leave
    out.

    SP1020: a buffer changes its shape, or something comes into being.
    """
    found = Assigned()

    def tracked(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        before = {(path, part): dict(part._buffers) for path, part in module.named_modules()}
        held, drawn = Slots(torch, module, prefix), generators()
        missed = {function: function.cache_info().misses for function in held.caches}
        given = [*torch.utils._pytree.tree_leaves((inputs, named)), *module.parameters()]
        sources = [node_of(t) for t in given if isinstance(t, torch.Tensor)]
        buffers = [node_of(t) for t in module.buffers()]
        try:
            with _unseen(torch):
                result = forward(*inputs, **named)
            assigned = [
                (f"{path}.{name}".lstrip("."), old, part._buffers.get(name), name in part._non_persistent_buffers_set)
                for (path, part), buffers in before.items()
                for name, old in buffers.items()
                if part._buffers.get(name) is not old
            ]
            now = Slots(torch, module, prefix)
            _refuse_made(held, now, prefix)
            found.replaced = {name: old for name, old, _, passing in assigned if passing and old is not None}
            found.replaced |= {n: t for n, t in held.tensors.items() if now.tensors.get(n) is not t}
            written = [(n.removeprefix(prefix), old, new) for n, old, new, passing in assigned if not passing]
            varying = partial(varies, torch, given=sources, buffers=buffers)
            for name, tensor in now.cached:
                if all(tensor is not t for _, t in held.cached) and varying(tensor):
                    raise kept(name)
            found.left = Left(torch, held, now, varying, drawn)
        finally:
            held.restore()
            for function, misses in missed.items():
                if function.cache_info().misses != misses:
                    function.cache_clear()
        contents = [_contents(*buffer) for buffer in written]  # all before any changes: buffers may change places
        for (_, old, _), new in zip(written, contents, strict=True):
            old.copy_(new)
        return result

    attributes = [(vars(part), dict(vars(part))) for part in module.modules()]
    try:
        with forward_through(module, tracked):
            yield found
    finally:
        for holder, contents in attributes:  # the export puts copies of lists and dicts there
            put(holder, contents)


@contextmanager
def forward_through(module: Any, around: Callable[..., Any]) -> Iterator[None]:
    """Within it, the module's forward is around(forward, *inputs, **named), with forward's signature."""
    own, forward = module.__dict__.get("forward"), module.forward
    module.__dict__["forward"] = functools.wraps(forward)(functools.partial(around, forward))
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:  # the object's, not its class's
            module.__dict__["forward"] = own


def require_kept(program: Any, replaced: dict[str, Any], prefix: str) -> None:
    """SP1020: the program reads a tensor that forward replaced. `prefix`: of buffers' names."""
    read = {n.name for n in program.graph.nodes if any(map(reads_contents, n.users))}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.arg.name in read and spec.target in replaced:
            raise not_saved(spec.target.removeprefix(prefix))
    for constant in read_constants(program):
        for name, tensor in replaced.items():
            if is_same(constant, tensor_of(tensor)):
                raise kept(name)


def not_saved(buffer: str) -> UserError:
    problem = f"the module writes to its buffer {buffer!r} in forward, but does not save it with its state"
    fix = "register it without persistent=False: it is part of what training goes on from"
    return UserError("SP1020", problem, f"{fix}; {ONCE}, if that alone fills it")


def _contents(name: str, old: Any, new: Any) -> Any:
    fix = "register a buffer with the shape and type that it will have"
    if old is None or new is None:
        raise UserError("SP1020", f"the module's buffer {name!r} is None before or after forward, but not both", fix)
    if old.shape != new.shape or old.dtype != new.dtype:
        became = [f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (old, new)]
        raise UserError(
            "SP1020", f"the module's buffer {name!r} is {became[0]}, and becomes {became[1]} in forward", fix
        )
    return new.detach().clone()


def _refuse_made(held: Slots, now: Slots, prefix: str) -> None:
    """SP1020: parameters, buffers or parts that forward has made: a plan's are there before the first step."""
    for path, names in held.registered.items():
        for name in sorted(now.registered.get(path, names) - names):
            what = f"{path}.{name}".lstrip(".").removeprefix(prefix)
            problem = f"the module makes {what!r}, which it did not have before, in its first forward pass"
            raise UserError("SP1020", problem, "make it in __init__, or call the module once before it is captured")


@contextmanager
def _unseen(torch: Any) -> Iterator[None]:
    """Assignments are nobody else's business: torch.export has a hook of its own on them."""
    hooks = torch.nn.modules.module._global_buffer_registration_hooks
    held = dict(hooks)
    hooks.clear()
    try:
        yield
    finally:
        hooks.update(held)
