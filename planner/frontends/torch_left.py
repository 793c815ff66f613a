"""What a pass of forward leaves for the next one, where there was nothing before: in an attribute that was None, or
missing, in a dict that it fills, in a list that it appends to.

A program is one pass, so the next has to be the same. Where what is left depends on inputs or parameters, a second pass
is recorded, from what the first one left: it may not read that, and has to do the same. So what a step leaves for who
looks at it, what it makes anew before it reads it, and tables that are made once, are no more than that.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_figures import Figure
from planner.frontends.torch_slots import Slots, are_same, contents_of, put
from planner.frontends.torch_writes import changing, is_changed, reads_contents


def is_left(tensor: Any) -> bool:
    """Whether it stands for what a step leaves, so that its numbers say nothing."""
    return hasattr(tensor, "left_by_a_step")


def kept(name: str) -> UserError:
    fix = "register it as a buffer, with its first contents: register_buffer(name, tensor); or call the module once"
    fix += " before it is captured, if that leaves what stays"
    return UserError("SP1020", f"the module keeps a tensor from one step for the next in {name!r}", fix)


def varies(torch: Any, tensor: Any, given: Sequence[Any], buffers: Sequence[Any]) -> bool:
    """Whether a tensor of the pass that is being recorded is another one in the next: it depends on `given`, inputs and
    parameters, on numbers that are drawn, or on `buffers` that the pass changes. (All of these as nodes.)"""
    sources = {*given, *(n for n in buffers if n is not None and is_changed([n]))} - {None}
    seen, open_ = set[Any](), [node_of(tensor)]
    while open_:
        node = open_.pop()
        if node is None or node in seen:
            continue
        if node in sources or _is_drawn(torch, node):
            return True
        seen.add(node)
        for writing in (node, *changing([node])):
            open_ += writing.all_input_nodes if reads_contents(writing) else []
    return False


class Left:
    """What a pass left in slots that were empty. `varying`: whether a tensor is another one in the next pass; `drawn`:
    the states of Python's and NumPy's generators before."""

    def __init__(self, torch: Any, before: Slots, now: Slots, varying: Callable[[Any], bool], drawn: Any) -> None:
        self._torch, self._before, self._now, self._drawn = torch, before, now, drawn
        fresh = {n: tensor_of(x) for n, x in now.tensors.items() if n not in before.tensors}
        self._marks: dict[int, Any] = {}
        """By the ids of tensors of the pass that vary: what stands for them in the next one."""
        self._constant: dict[int, Any] = {}
        """Of those that do not."""
        for tensor in map(tensor_of, now.tensors.values()):
            if node_of(tensor) is not None:
                marks = self._marks if varying(tensor) else self._constant
                marks[id(tensor)] = _standing(torch, tensor)
        self.left = {n: self._marks[id(t)] for n, t in fresh.items() if id(t) in self._marks}
        """By name: what stands for what is left."""

    @contextmanager
    def found(self) -> Iterator[None]:
        """Within it, the module is as the pass left it, but for numbers in its attributes and tables that are made."""
        held, drawn = [(holder, contents_of(holder)) for holder, _ in self._now.held.values()], generators()
        try:
            for key, (holder, found) in self._now.held.items():
                self._leave(key, holder, found)
            draw_as(self._drawn)
            yield
        finally:
            draw_as(drawn)
            for holder, contents in held:
                put(holder, contents)

    def _leave(self, key: int, holder: Any, found: dict[Any, Any]) -> None:
        _, old = self._before.held.get(key, (None, {}))
        if are_same(found, old) or key in self._before.of_registered:
            return
        if key not in self._before.held or not isinstance(holder, dict | type | tuple):
            put(holder, {k: self._marked(x) for k, x in found.items()})
            return
        numbers = {k for k, x in old.items() if key in self._before.of_parts and isinstance(x, int | float)}
        changed = {k for k, x in found.items() if (k not in old or old[k] is not x) and k not in numbers}
        tables = {k for k in changed if self._is_table(found[k])}
        contents = {k: x for k, x in contents_of(holder).items() if k in found or k not in old}
        put(holder, contents | {k: self._marked(found[k]) for k in changed - tables})

    def _is_table(self, held: Any) -> bool:
        inside = {id(t) for t in _inside(self._torch, held)}
        return bool(inside & self._constant.keys()) and not inside & self._marks.keys()

    def _marked(self, held: Any) -> Any:
        """With what stands for its tensors."""
        if isinstance(held, tuple):
            parts = [self._marked(x) for x in held]
            if all(a is b for a, b in zip(parts, held, strict=True)):
                return held
            return type(held)(*parts) if hasattr(held, "_fields") else tuple(parts)
        tensor = tensor_of(held)
        mark = self._marks.get(id(tensor), self._constant.get(id(tensor), held))
        if mark is held or tensor is held:
            return mark
        figure = Figure(self._torch, mark)
        figure.tensor = mark
        return figure

    def require_same(self, first: Any, second: Any) -> None:
        """SP1020: the second program, of `found`, reads what was left, or computes something else than the first."""
        for constant in read_constants(second):
            for name, mark in self.left.items():
                if is_same(constant, mark):
                    raise kept(name)
        if _form(self._torch, first) != _form(self._torch, second):
            raise self.differs()

    def differs(self) -> UserError:
        problem = f"the module's second step is another than its first, which leaves a tensor in {min(self.left)!r}"
        fix = "call it once before it is captured, if it then stays as it is, or keep what it needs in a buffer"
        return UserError("SP1020", problem, fix)

    def told(self) -> UserError:
        """That who looks there finds nothing."""
        problem = f"the module's forward leaves a tensor in {min(self.left)!r}, where a plan's steps leave none"
        return UserError("SP1020", problem, "return it beside the prediction; if nobody looks there, all is well")


def read_constants(program: Any) -> list[Any]:
    """A program's constants whose contents are read."""
    read = {n.name for n in program.graph.nodes if any(map(reads_contents, n.users))}
    specs = program.graph_signature.input_specs
    return [program.constants[s.target] for s in specs if s.kind.name == "CONSTANT_TENSOR" and s.arg.name in read]


def is_same(constant: Any, tensor: Any) -> bool:
    """Whether a program's constant is this tensor."""
    return constant is tensor or constant.data_ptr() == tensor.data_ptr() != 0


def generators() -> Any:
    """The states of Python's and NumPy's."""
    return random.getstate(), np.random.get_state(legacy=True)


def draw_as(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])


def tensor_of(held: Any) -> Any:
    return held.tensor if isinstance(held, Figure) else held


def _inside(torch: Any, held: Any, depth: int = 9) -> Iterator[Any]:
    if isinstance(held, torch.Tensor | Figure):
        yield tensor_of(held)
    elif isinstance(held, tuple | list | dict | set) and depth:
        for x in held.values() if isinstance(held, dict) else held:
            yield from _inside(torch, x, depth - 1)


def _standing(torch: Any, tensor: Any) -> Any:
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction():
        made = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
        made.left_by_a_step = True
        return made


def _is_drawn(torch: Any, node: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _form(torch: Any, program: Any) -> list[Any]:
    """What a program's operators are and what each is called with, but for the constants."""
    constants = {s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "CONSTANT_TENSOR"}
    places = {n: None for n in program.graph.nodes if n.op == "placeholder" and n.name in constants}
    return _form_of(torch, program.graph_module, program.graph, places)


def _form_of(torch: Any, module: Any, graph: Any, places: dict[Any, Any]) -> list[Any]:
    def shown(x: Any) -> Any:
        if not isinstance(x, torch.fx.Node):
            return repr(x)
        if x.op == "get_attr":
            block = attrgetter(x.target)(module)
            return _form_of(torch, block, block.graph, {}) if isinstance(block, torch.fx.GraphModule) else ""
        return places[x]

    found = []
    for place, node in enumerate(n for n in graph.nodes if n not in places):
        places[node] = place
        flat, form = torch.utils._pytree.tree_flatten((node.args, node.kwargs))
        found.append((node.op, str(node.target) if node.op == "call_function" else "", str(form), *map(shown, flat)))
    return found
