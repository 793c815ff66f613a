"""What a planned module is called with: tensors are the plan's inputs, all else must be what the plan has."""

import inspect
import re
from collections.abc import Collection, Mapping
from functools import cache, cached_property
from typing import Any

import torch
from torch import nn

from codegen.arguments import matched
from planner.errors import UserError
from planner.frontends.torch_arguments import by_parameter, constant, constants, leaves
from planner.graph.model import Program

OTHERS = {
    "train_step": "; a call with others needs a plan of its own",
    "predict": "; if evaluation mode has others than training, such as no labels, capture it with evaluation=...",
}
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class PlannedArguments:
    """Of one program. `taken`: names of the tensors that the module takes in training, in order; `read`: those that the
    program computes with."""

    def __init__(self, module: nn.Module, program: Program, taken: tuple[str, ...], read: Collection[str]) -> None:
        self._signature, self._captured = inspect.signature(module.forward), program.arguments
        self._positional = [p.name for p in self._signature.parameters.values() if p.kind in POSITIONAL]
        self._taken, self._read, self._others = taken, frozenset(read), OTHERS[program.name]
        self._plan = "the plan" if program.name == "train_step" else "the plan of evaluation mode"

    def tensors(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """By the plan's names, in its order. None is no input, as where the module was captured; what the program does
        not read, such as labels of a loss that the module computes in training, may be missing. SP1601: not those of
        the plan."""
        in_order = self._in_order(inputs)
        parts, rest = list(leaves(torch, in_order)), list(leaves(torch, named))
        self._require_captured([*parts, *rest], in_order.keys() | named.keys())
        places = [x for _, x in parts if x is None or isinstance(x, torch.Tensor)]
        given = tuple(x for x in places if x is not None)
        by_name = {_exported(path): x for path, x in rest if isinstance(x, torch.Tensor)}
        for name in by_name:
            if name not in self._taken:
                raise self._unknown(name, "a tensor")
        wanted = self._taken
        if all(x is not None for x in places[: len(given)]):  # or it is not known which ones are missing
            used = {*self._read, *wanted[: len(given)], *by_name}
            wanted = tuple(n for n in wanted if n in used)
        found = matched("the module", wanted, given, by_name, self._others)
        return dict(zip(wanted, found, strict=True))

    def _in_order(self, inputs: tuple[Any, ...]) -> dict[str, Any]:
        """By the names of parameters. SP1601: too many."""
        if len(inputs) <= len(self._positional):
            return dict(zip(self._positional, inputs, strict=False))
        try:
            return by_parameter(self._signature, inputs, {})
        except TypeError as error:
            what = f"the module takes other arguments: {error}"
            raise UserError("SP1601", what, "call it as the module is called") from error

    def _require_captured(self, given: list[tuple[tuple[str, ...], Any]], passed: Collection[str]) -> None:
        """SP1601: an argument is another constant than when the module was captured, or no tensor where one was, or one
        where none was; or only parts are there of one of those that are `passed`."""
        captured, places = self._captured or {}, set()
        for path, x in given:
            place = path[0] if len(path) == 1 else ".".join(path)
            places.add(place)
            if isinstance(x, torch.Tensor):
                if place in captured:
                    raise self._another(place, "a tensor")
            elif x is not None or place in self._constants:
                self._require_same(place, _exported(path), x)
        for place, known in captured.items():
            whole = place.partition(".")[0]
            if place not in places and known is not None and whole in passed:
                what = f"argument {place} is missing, in {self._plan} it is {_shown(known)}"
                raise UserError("SP1601", what, f"pass all of {whole}, or nothing of it")

    def _require_same(self, place: str, name: str, x: Any) -> None:
        if x is not None and name in self._taken and place not in (self._captured or {}):
            what = f"input {place} is of type {type(x).__name__}, in {self._plan} it is a tensor"
            raise UserError("SP1601", what, "pass a tensor, such as torch.as_tensor makes")
        if x is not None and self._captured is None:
            fix = "leave it out, or capture the module again"
            raise UserError("SP1601", f"argument {place} is no tensor, of which this plan does not tell", fix)
        given = constant(x)
        if place not in self._constants:
            raise self._unknown(place, _shown(given))
        known = self._constants[place]
        if (type(given), given) != (type(known), known):
            raise self._another(place, _shown(given))

    def _another(self, place: str, given: str) -> UserError:
        what = f"argument {place} is {given}, in {self._plan} it is {_shown(self._constants[place])}"
        return UserError("SP1601", what, f"pass that, or leave it out{self._others}")

    def _unknown(self, place: str, given: str) -> UserError:
        what = f"argument {place} is {given}, the module was captured without it"
        return UserError("SP1601", what, f"leave it out, or capture the module with it{self._others}")

    @cached_property
    def _constants(self) -> Mapping[str, Any]:
        """Those that the module was captured with, and what the others are if nobody passes them."""
        captured = self._captured or {}
        parameters = self._signature.parameters.values()
        defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        passed = {place.split(".")[0] for place in captured}
        return constants(torch, {n: x for n, x in defaults.items() if n not in passed}) | dict(captured)


def _shown(x: Any) -> str:
    return str(x["text"] if isinstance(x, dict) else repr(x))[:80]


@cache
def _exported(path: tuple[str, ...]) -> str:
    """The name that torch.export gives an input: `state=(h, c)` is `state_0` and `state_1`, and capitals are small."""
    return "_".join(re.sub(r"[^a-z0-9]", "_", key.lower()) for key in path).removeprefix("_")
