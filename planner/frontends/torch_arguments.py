"""What a module is called with beside tensors. A plan has such arguments as constants: `Program.arguments` says of each
what it was, by its parameter's name and, within lists and dicts, its place there: `use_cache`, `sizes.0`, `options.k`.

A constant is as in JSON; whatever else torch.export takes, an Enum or an infinite number, is told as {"text": repr}."""

import inspect
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from planner.graph.model import Graph

PLAIN = (bool, int, float, str, type(None))


def by_parameter(signature: inspect.Signature, positional: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the names of the parameters of `forward`; further ones by their own. TypeError: too many."""
    return {**signature.bind_partial(*positional).arguments, **keywords}


def leaves(torch: Any, arguments: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Where each lies in structures of arguments, and what it is."""
    for name, argument in arguments.items():
        if type(argument) in PLAIN or isinstance(argument, torch.Tensor):  # which takes PyTorch longer to find out
            yield (name,), argument
            continue
        for path, leaf in torch.utils._pytree.tree_flatten_with_path(argument)[0]:
            yield (name, *(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path)), leaf


def constant(leaf: Any) -> Any:
    """As graph.json has it."""
    plain = type(leaf) in PLAIN and (type(leaf) is not float or isfinite(leaf))
    return leaf if plain else {"text": repr(leaf)}


def constants(torch: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    found = ((".".join(path), leaf) for path, leaf in leaves(torch, arguments))
    return {path: constant(leaf) for path, leaf in found if not isinstance(leaf, torch.Tensor)}


def called_with(graph: Graph, torch: Any, training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Graph:
    """The graph, whose programs tell their modules' arguments. Tensors of training that evaluation mode is called
    without are None there."""
    given = {".".join(path) for path, _ in leaves(torch, evaluation)}
    tensors = (".".join(path) for path, leaf in leaves(torch, training) if isinstance(leaf, torch.Tensor))
    without = {place: None for place in tensors if place not in given}
    told = {"train_step": constants(torch, training), "predict": without | constants(torch, evaluation)}
    changed = [p.model_copy(update={"arguments": told[p.name]}) if p.name in told else p for p in graph.programs]
    return graph.model_copy(update={"programs": tuple(changed)})
