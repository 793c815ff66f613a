"""What an exported module returns: described as planner/graph/results.py says, and made again of other tensors."""

import json
import sys
from collections.abc import Iterator, Sequence
from enum import Enum
from importlib import import_module
from math import isfinite
from typing import Any

from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.results import Structure, is_plain


def user_outputs(program: Any) -> list[tuple[Any, Any]]:
    """(what the program's signature says of it, node or constant) of all that the module itself returns."""
    (final,) = (n for n in program.graph.nodes if n.op == "output")
    outputs = zip(program.graph_signature.output_specs, final.args[0], strict=True)
    return [(spec.arg, node) for spec, node in outputs if spec.kind.name == "USER_OUTPUT"]


def is_tensor(argument: Any) -> bool:
    return type(argument).__name__ == "TensorArgument"


def returning(graph: Graph, torch: Any, programs: dict[str, tuple[Any, frozenset[int]]]) -> Graph:
    """The graph with what its programs return, by their names those exported, and which of what they return are
    Python's numbers. SP1015: none could make that again."""
    described = {name: _described(torch, *exported) for name, exported in programs.items()}
    results = {name: None if is_plain(found) else found for name, found in described.items()}
    changed = [p.model_copy(update={"results": results[p.name]}) if p.name in results else p for p in graph.programs]
    return graph.model_copy(update={"programs": tuple(changed)})


def _described(torch: Any, program: Any, numbers: frozenset[int]) -> Structure:
    leaves = [_leaf(argument, node) for argument, node in user_outputs(program)]
    told = [{"number": leaf} if place in numbers else leaf for place, leaf in enumerate(leaves)]
    return _part(torch.utils._pytree, program.call_spec.out_spec, iter(told))


def _leaf(argument: Any, node: Any) -> Structure:
    if is_tensor(argument):
        return str(node.meta["val"].dtype).removeprefix("torch.")
    value = getattr(argument, "value", None)
    if isinstance(value, float) and not isfinite(value):
        raise UserError("SP1015", f"the module returns the number {value}", "return a tensor of it")
    if isinstance(value, Enum):  # of numbers or texts, as which it would come back
        raise UserError("SP1015", f"the module returns {value}, a member of an Enum", "return its value")
    return {"constant": value}


def _part(tree: Any, spec: Any, leaves: Iterator[Structure]) -> Structure:
    if spec.is_leaf():
        return next(leaves)
    named = spec.type is tree.namedtuple
    kind = spec.context if named else spec.type
    found: dict[str, Any] = {"kind": _name_of(kind)}
    context = None if named else _plain_context(tree, kind, spec.context)
    if context is not None:
        found["context"] = context
    children = spec.children() if hasattr(spec, "children") else spec.children_specs  # before PyTorch 2.10
    return {**found, "parts": [_part(tree, child, leaves) for child in children]}


def _name_of(kind: type) -> str:
    """SP1015: nobody could find it again."""
    place, name = kind.__module__, kind.__qualname__
    if place != "builtins" and _attribute(sys.modules.get(place), name) is not kind:
        fix = "define the class at the top of a file, where it can be imported from"
        raise UserError("SP1015", f"the module returns a {name}, which {place} has under no such name", fix)
    return name if place == "builtins" else f"{place}:{name}"


def _plain_context(tree: Any, kind: type, context: Any) -> Any:
    """As JSON. SP1015: it cannot be that."""
    known = tree.SUPPORTED_SERIALIZED_TYPES.get(kind)
    try:
        plain = known.to_dumpable_context(context) if known and known.to_dumpable_context else context
        if json.loads(json.dumps(plain, allow_nan=False)) == plain:
            return plain
    except (TypeError, ValueError, AttributeError, NotImplementedError):
        pass
    what = f"the module returns a {kind.__qualname__} with what is no JSON: {str(context)[:80]}"
    fix = "use texts as keys; register a class of your own with to_dumpable_context and from_dumpable_context"
    raise UserError("SP1015", what, fix)


class Results:
    """Makes a structure of the tensors in it. SP1621: a class that it names is not there."""

    def __init__(self, torch: Any, structure: Structure, module: Any) -> None:
        self._torch = torch
        self._own = list(dict.fromkeys(type(part).__module__ for part in module.modules()))
        self._leaves: list[tuple[bool, Any]] = []
        """(True, what makes it of a tensor), or (False, a constant)."""
        self._spec = None if structure is None else self._part(structure)

    def of(self, tensors: Sequence[Any]) -> Any:
        if self._spec is None:
            return tensors[0] if len(tensors) == 1 else tuple(tensors)
        given = iter(tensors)
        leaves = [made(next(given)) if tensor else made for tensor, made in self._leaves]
        return self._torch.utils._pytree.tree_unflatten(leaves, self._spec)

    def _part(self, structure: Structure) -> Any:
        tree = self._torch.utils._pytree
        if isinstance(structure, str) or "kind" not in structure:
            self._leaves.append(self._leaf(structure))
            return tree.tree_structure(0)  # treespec_leaf() is newer than PyTorch 2.9
        kind, context = self._found(structure["kind"]), structure.get("context")
        parts = [self._part(part) for part in structure["parts"]]
        if kind not in tree.SUPPORTED_NODES:
            if not tree.is_namedtuple_class(kind):
                raise self._missing(structure["kind"], "is not registered with torch.utils._pytree here")
            return tree.TreeSpec(tree.namedtuple, kind, parts)
        known = tree.SUPPORTED_SERIALIZED_TYPES.get(kind)
        if known and known.from_dumpable_context:
            context = known.from_dumpable_context(context)
        return tree.TreeSpec(kind, context, parts)

    def _leaf(self, structure: Structure) -> tuple[bool, Any]:
        if isinstance(structure, dict) and "constant" in structure:
            return False, structure["constant"]
        number = isinstance(structure, dict)
        dtype = getattr(self._torch, structure["number"] if number else structure)
        return True, lambda tensor: tensor.to(dtype).item() if number else tensor.to(dtype)

    def _found(self, name: str) -> Any:
        """A class; of a file that runs as a script its own one, whatever the file was called when it was captured."""
        place, _, path = name.rpartition(":")
        for own in self._own:
            near = _attribute(sys.modules.get(own), path)
            if isinstance(near, type) and (near.__module__ == place or "__main__" in (near.__module__, place)):
                return near
        try:
            found = _attribute(import_module(place or "builtins"), path)
        except ImportError as error:
            raise self._missing(name, f"cannot be imported: {error}") from error
        if not isinstance(found, type):
            raise self._missing(name, "is not there")
        return found

    def _missing(self, name: str, why: str) -> UserError:
        fix = "import what defines it first, from where it was when the module was captured, or capture it again"
        return UserError("SP1621", f"the module returned a {name} when it was captured, which {why}", fix)


def _attribute(owner: Any, path: str) -> Any:
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner
