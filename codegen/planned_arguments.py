"""What a planned module is called with: tensors are the plan's inputs, all else must be what the plan has."""

import inspect
import re
from collections.abc import Collection, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from codegen.arguments import matched
from planner.errors import UserError
from planner.frontends.torch_arguments import by_parameter, constant, constants, leaves
from planner.graph.model import Program

OTHERS = "; a call with others needs a plan of its own"


class PlannedArguments:
    """Of one program. `taken`: names of the tensors that the module takes, in order; `read`: those that the program
    computes with."""

    def __init__(self, module: nn.Module, program: Program, taken: tuple[str, ...], read: Collection[str]) -> None:
        self._module, self._captured = module, program.arguments
        self._taken, self._read = taken, frozenset(read)

    def tensors(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """By the plan's names, in its order. None is no input, as where the module was captured; what the program does
        not read, such as labels of a loss that the module computes in training, may be missing. SP1601: not those of
        the plan."""
        parts = [leaf for _, leaf in leaves(torch, {"": inputs})]
        if not all(isinstance(x, torch.Tensor) for x in (*parts, *named.values())):
            self._require_captured(inputs, named)
        places = [x for x in parts if x is None or isinstance(x, torch.Tensor)]
        given = tuple(x for x in places if x is not None)
        by_name = {_exported(path): x for path, x in leaves(torch, named) if isinstance(x, torch.Tensor)}
        for name in sorted(by_name.keys() - set(self._taken)):
            what = f"argument {name} is a tensor, the module was captured without it"
            raise UserError("SP1601", what, f"leave it out, or capture the module with an example of it{OTHERS}")
        wanted = self._taken
        if all(x is not None for x in places[: len(given)]):  # or it is not known which ones are missing
            used = {*self._read, *wanted[: len(given)], *by_name}
            wanted = tuple(n for n in wanted if n in used)
        found = matched("the module", wanted, given, by_name, OTHERS)
        return dict(zip(wanted, found, strict=True))

    def _require_captured(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """SP1601: an argument is another constant than when the module was captured, or no tensor where one was."""
        try:
            arguments = by_parameter(self._module, inputs, named)
        except TypeError as error:
            raise UserError(
                "SP1601", f"the module takes other arguments: {error}", "pass those that it takes"
            ) from error
        given = {path: x for path, x in leaves(torch, arguments) if not isinstance(x, torch.Tensor)}
        for path, x in given.items():
            place = ".".join(path)
            if x is None and place not in self._constants:
                continue
            if _exported(path) in self._taken and x is not None:
                what = f"input {place} is of type {type(x).__name__}, in the plan it is a tensor"
                raise UserError("SP1601", what, "pass a tensor, such as torch.as_tensor makes")
            if self._captured is None:
                fix = "leave it out, or capture the module again"
                raise UserError("SP1601", f"argument {place} is no tensor, of which this plan does not tell", fix)
            if place not in self._constants:
                what = f"argument {place} is {_shown(x)}, the module was captured without it"
                raise UserError("SP1601", what, f"leave it out, or capture the module with it{OTHERS}")
            _require_same(place, constant(x), self._constants[place])
        passed = {".".join(path) for path, _ in leaves(torch, arguments)}
        for place, known in (self._captured or {}).items():
            if place.split(".")[0] in arguments and place not in passed:
                what = f"argument {place} is missing, in the plan it is {_shown(known)}"
                raise UserError("SP1601", what, f"pass all of {place.split('.')[0]}, or nothing of it")

    @cached_property
    def _constants(self) -> Mapping[str, Any]:
        """Those that the module was captured with, and what the others are if nobody passes them."""
        captured = self._captured or {}
        parameters = inspect.signature(self._module.forward).parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        passed = {place.split(".")[0] for place in captured}
        return constants(torch, {n: x for n, x in defaults.items() if n not in passed}) | dict(captured)


def _require_same(place: str, given: Any, known: Any) -> None:
    if (type(given), given) != (type(known), known):
        what = f"argument {place} is {_shown(given)}, in the plan it is {_shown(known)}"
        raise UserError("SP1601", what, f"pass that, or leave it out{OTHERS}")


def _shown(x: Any) -> str:
    return str(x["text"] if isinstance(x, dict) else repr(x))[:80]


def _exported(path: tuple[str, ...]) -> str:
    """The name that torch.export gives an input: `state=(h, c)` is `state_0` and `state_1`, and capitals are small."""
    return "_".join(re.sub(r"[^a-z0-9]", "_", key.lower()) for key in path).removeprefix("_")
