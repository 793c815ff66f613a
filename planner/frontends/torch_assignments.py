"""What a module's forward assigns to its attributes.

A buffer that is assigned anew keeps its tensor during the export and gets the new contents at the end of forward, as if
they had been written into it: torch.export would drop what submodules assign, and take one buffer for another where
some are None. A tensor in an ordinary attribute that one step leaves for the next is refused: to an exported program it
is a constant, or made anew in every step where the first one finds None, or no such attribute. A buffer that is not
saved, and not read before it is assigned anew, as potentials of membranes are, is no more than a variable of forward,
and may change its shape. What the export itself leaves in the module is taken out again.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_writes import reads_contents

REGISTERED = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module has what it knows by name."""


@contextmanager
def assignments(torch: Any, module: Any, prefix: str) -> Iterator[dict[str, Any]]:
    """Within it, `module` can be exported. Yields what forward replaced in attributes, and in buffers that are not
    saved: name -> the tensor before. `prefix`: of the module's names, which errors leave out.

    SP1020: a buffer changes its shape, something comes into being, or something else stays for the next step.
    """
    replaced = dict[str, Any]()

    def tracked(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        before = {(path, part): dict(part._buffers) for path, part in module.named_modules()}
        held = _Held(torch, module)
        try:
            with _unseen(torch), _missed(torch, module) as missed:
                result = forward(*inputs, **named)
            assigned = [
                (f"{path}.{name}".lstrip("."), old, part._buffers.get(name), name in part._non_persistent_buffers_set)
                for (path, part), buffers in before.items()
                for name, old in buffers.items()
                if part._buffers.get(name) is not old
            ]
            now = _Held(torch, module)
            _refuse_made(held, now, prefix)
            replaced.update({name: old for name, old, _, passing in assigned if passing and old is not None})
            written = [(n.removeprefix(prefix), old, new) for n, old, new, passing in assigned if not passing]
            made = {n.removeprefix(prefix): t for n, t in now.tensors.items() if n.partition("[")[0] in missed}
            _require_constant(torch, module, made, (inputs, named))
            replaced.update({n: t for n, t in held.tensors.items() if now.tensors.get(n) is not t})
        finally:
            held.restore()
        contents = [_contents(*buffer) for buffer in written]  # all before any changes: buffers may change places
        for (_, old, _), new in zip(written, contents, strict=True):
            old.copy_(new)
        return result

    with forward_through(module, tracked):
        yield replaced


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
    """SP1020: the program reads a tensor that forward replaced. `prefix`: of the module's names."""
    read = {n.name for n in program.graph.nodes if any(map(reads_contents, n.users))}
    for spec in program.graph_signature.input_specs:
        if spec.kind.name == "BUFFER" and spec.arg.name in read and spec.target in replaced:
            raise not_saved(spec.target.removeprefix(prefix))
        if spec.kind.name == "CONSTANT_TENSOR" and spec.arg.name in read:
            constant = program.constants[spec.target]
            for name, tensor in replaced.items():
                if constant is tensor or constant.data_ptr() == tensor.data_ptr():
                    raise _kept(name.removeprefix(prefix))


def not_saved(buffer: str) -> UserError:
    problem = f"the module writes to its buffer {buffer!r} in forward, but does not save it with its state"
    return UserError(
        "SP1020", problem, "register it without persistent=False: it is part of what training goes on from"
    )


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


@contextmanager
def _missed(torch: Any, module: Any) -> Iterator[set[str]]:
    """Yields the names of ordinary attributes that are None or missing, and are read, or asked for by hasattr(), before
    they are anything else; without those for which the class has a default. The export may put other objects before
    the parts, but with the same attributes.
    """
    kind, found = torch.nn.Module, set[str]()
    original, ordinary = kind.__getattr__, vars(kind()).keys()
    emptied: set[tuple[int, str]] = set()
    paths = {id(vars(part)): path for path, part in module.named_modules()}
    parts = [part for part in module.modules() if type(part).__getattr__ is original]
    for part in parts:
        empty = [n for n, held in vars(part).items() if held is None and n not in ordinary]
        for name in [n for n in empty if not hasattr(type(part), n)]:
            emptied.add((id(vars(part)), name))
            del vars(part)[name]  # what neither it nor its class has goes through __getattr__

    def looked_up(part: Any, name: str) -> Any:
        own = id(vars(part))
        try:
            if (own, name) not in emptied:
                return original(part, name)
        except AttributeError:
            found.add(f"{paths.get(own, '')}.{name}".lstrip("."))
            raise
        found.add(f"{paths[own]}.{name}".lstrip("."))
        return None

    kind.__getattr__ = looked_up
    try:
        yield found
    finally:
        kind.__getattr__ = original


def _require_constant(torch: Any, module: Any, made: dict[str, Any], inputs: Any) -> None:
    """SP1020: what was made where there was None, or nothing, depends on inputs or parameters, so that it is another
    thing in every step, where a plan would have it anew. Tables that are made once may stay."""
    if not made:
        return
    given = [t for t in (*torch.utils._pytree.tree_leaves(inputs), *module.parameters()) if torch.is_tensor(t)]
    varying = {node_of(t) for t in given} - {None}
    for name, tensor in made.items():
        seen, open_ = set[Any](), [n for n in [node_of(tensor)] if n is not None]
        while open_:
            node = open_.pop()
            if node in varying:
                raise _kept(name)
            if node not in seen and reads_contents(node):
                seen.add(node)
                open_ += node.all_input_nodes


def _refuse_made(held: "_Held", now: "_Held", prefix: str) -> None:
    """SP1020: parameters, buffers or parts that forward has made: a plan's are there before the first step."""
    for path, names in held.registered.items():
        for name in sorted(now.registered.get(path, names) - names):
            what = f"{path}.{name}".lstrip(".").removeprefix(prefix)
            problem = f"the module makes {what!r}, which it did not have before, in its first forward pass"
            raise UserError("SP1020", problem, "make it in __init__, or call the module once before it is captured")


def _kept(name: str) -> UserError:
    what = f"the module keeps a tensor from one step for the next in {name!r}"
    return UserError("SP1020", what, "register it as a buffer, with its first contents: register_buffer(name, tensor)")


class _Held:
    """What all parts of a module hold, in ordinary attributes and registered."""

    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        self.tensors: dict[str, Any] = {}
        """Those in attributes, and in lists and dicts there, by name."""
        self.registered: dict[str, set[str]] = {}
        """The names of parameters, buffers and parts, by the path of the part that has them."""
        self._contents: list[tuple[Any, Any]] = []
        """(list or dict, a copy of it)"""
        for path, part in module.named_modules():
            attributes = vars(part)
            own = [attributes[kind] for kind in REGISTERED]
            self.registered[path] = {name for held in own for name in held}
            self._contents += [(held, dict(held)) for held in (attributes, *own)]
            for name, held in attributes.items():
                if name not in REGISTERED:
                    self._look(f"{path}.{name}".lstrip("."), held)

    def _look(self, name: str, held: Any) -> None:
        if isinstance(held, self._torch.Tensor):
            self.tensors[name] = held
        elif type(held) in (list, dict, tuple):
            if not isinstance(held, tuple):
                self._contents.append((held, held.copy()))
            for key, one in held.items() if isinstance(held, dict) else enumerate(held):
                self._look(f"{name}[{key!r}]", one)

    def restore(self) -> None:
        for held, copy in self._contents:
            if isinstance(held, list):
                held[:] = copy
            else:
                for key in held.keys() - copy.keys():
                    del held[key]
                held.update(copy)


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
