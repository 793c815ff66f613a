"""Nodes that compute the same, each at places of its own, share one function.

Layers repeat: of a transformer's blocks, or of the steps of a loop, every node has the same text but for where its
operands lie. Such text is compiled once.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jinja2

from codegen.cpu.render import render_node
from codegen.cpu.view import NodeView, Operand

LEAST_USERS = 8
"""Text that fewer nodes have is easier to read where it is."""
MOST_PARAMETERS = 16
"""A call with more is as long as what it calls."""
SCRATCH, PARAMETER = "own_scratch", "own_parameter"
"""With in0, out0, up0 and so on the names of parameters. No template has a variable of such a name."""


class SharedFunction(NamedTuple):
    name: str
    view: NodeView
    """The first of its nodes, with parameters in place of where that one's operands lie."""
    body: str
    parameters: tuple[str, ...]
    users: int


class File(NamedTuple):
    """What a source file has of nodes."""

    shared: Sequence[SharedFunction]
    """Those whose first node is in this file."""
    nodes: Sequence[tuple[NodeView, str]]
    """With the text of their functions."""


class _Moved(NamedTuple):
    """A node with parameters in place of where its operands lie."""

    view: NodeView
    body: str
    places: Mapping[str, str]
    """Parameter -> what the node gives for it."""


def files(env: jinja2.Environment, by_file: Mapping[str, Sequence[NodeView]]) -> dict[str, File]:
    """File -> the text of its nodes, and of what some of them share."""
    shared, calls = dict[str, SharedFunction](), dict[str, str]()
    counts = defaultdict[str, int](int)
    for group in _alike(env, [view for views in by_file.values() for view in views]):
        first, op = group[0], group[0].view.node.op
        counts[op] += 1
        function = SharedFunction(f"{op}_{counts[op]}", first.view, first.body, tuple(first.places), len(group))
        shared[first.view.name] = function
        calls |= {moved.view.name: _call(function.name, moved) for moved in group}
    return {
        file: File(
            [shared[view.name] for view in views if view.name in shared],
            [(view, calls[view.name] if view.name in calls else render_node(env, view)) for view in views],
        )
        for file, views in by_file.items()
    }


def _alike(env: jinja2.Environment, views: Sequence[NodeView]) -> list[list[_Moved]]:
    """Nodes whose text is the same but for places. Prepared calls of a library are each a node's own."""
    candidates = defaultdict[tuple[str, str], list[NodeView]](list)
    for view in views:
        operands = len(view.inputs) + len(view.outputs) + len(view.updates)
        if not view.uses_library and operands <= MOST_PARAMETERS:
            candidates[view.signature.text, view.mode.text()].append(view)
    found: list[list[_Moved]] = []
    for several in candidates.values():
        groups = defaultdict[tuple[object, ...], list[_Moved]](list)
        for moved in (_moved(env, view) for view in several if len(several) >= LEAST_USERS):
            groups[tuple(moved.places), moved.body].append(moved)
        found += (group for group in groups.values() if len(group) >= LEAST_USERS)
    return found


def _moved(env: jinja2.Environment, view: NodeView) -> _Moved:
    places: dict[str, str] = {}

    def moved(prefix: str, operands: Sequence[Operand]) -> tuple[Operand, ...]:
        placed = [(o, f"{prefix}{i}") if o.place else (o, "") for i, o in enumerate(operands)]
        places.update({name: o.place for o, name in placed if name})
        return tuple(o.at(name) if name else o for o, name in placed)

    changed = replace(
        view,
        inputs=moved("in", view.inputs),
        outputs=moved("out", view.outputs),
        updates=moved("up", view.updates),
    )
    if view.scratch:
        places[SCRATCH] = view.scratch_place
        scratch = {part: text.replace(view.scratch_place, SCRATCH) for part, text in view.scratch.items()}
        changed = replace(changed, scratch=scratch)
    if view.parameter:
        places[PARAMETER] = view.parameter
        changed = replace(changed, parameter=PARAMETER)
    body = render_node(env, changed)
    read = set(re.findall(r"\w+", body))
    return _Moved(changed, body, {parameter: place for parameter, place in places.items() if parameter in read})


def _call(name: str, moved: _Moved) -> str:
    view = moved.view
    which = [word for word, wanted in (("stage", view.stages > 1), ("slice", view.mode.dim != "whole")) if wanted]
    return f"  shared::{name}({', '.join(['run', *which, *moved.places.values()])});"
