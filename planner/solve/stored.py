"""Pass *stored*: parameters whose convolutions want them packed are stored so, with their gradients and momentum.

A convolution packs plain weights in a stage of its own, in every step. Where all that touches a parameter are
convolutions and one element-wise update, it is stored as the forward kernel wants it, or, if that is no layout of whole
blocks, as that of the gradient of the data. The two never agree, so one of them packs from the other's layout: from
the forward kernel's in half the time that it takes from plain weights, the other way round in half as much again
(measured), and predictions have only forward kernels. The gradient of the weights is brought from its own kernel's
layout into the parameter's anyway. No number changes: the same kernels add the same products in the same order
(ops/stored.py).

On a GPU all directions want the same order, so nothing packs; and what a node wants does not depend on its algorithm,
so weights may be stored so under a memory budget, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from planner.graph.model import DType, Graph, Node, Role, Value
from planner.ops.base import op_named
from planner.ops.device import DEVICE_KERNELS, running
from planner.ops.optimizer import GradientSum
from planner.ops.signature import signature_of
from planner.ops.stored import ELEMENTWISE, PLAIN, WEIGHTS, Stored, held_by_caller, stored_as, takes, unpacked, wanted
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice


class _Use(NamedTuple):
    """A node that touches a value, and as which operand."""

    program: str
    node: Node
    operand: str


def stored_weights(graph: Graph, schedules: Mapping[str, Schedule]) -> dict[str, Schedule]:
    """Schedules whose nodes find weights stored as they want them, where they may be, without the packing that this
    spares."""
    choices = {name: dict(schedule.choices) for name, schedule in schedules.items()}
    for _, users in _groups(graph):
        stored = _best(graph, schedules, users)
        for use in users if stored != PLAIN else ():
            choices[use.program][use.node.id] = given(graph, use.node, choices[use.program][use.node.id], stored)
    return {name: replace(schedule, choices=choices[name]) for name, schedule in schedules.items()}


def layouts_of(graph: Graph, schedules: Mapping[str, Schedule]) -> dict[str, str]:
    """Value -> how it is stored in such schedules, by name; plain ones are not listed."""
    layouts: dict[str, str] = {}
    for group, users in _groups(graph):
        for use in users:
            stored = stored_as(schedules[use.program].choices[use.node.id].facts)
            if stored != PLAIN:
                layouts.update(dict.fromkeys(group, stored.text))
    return layouts


def _groups(graph: Graph) -> list[tuple[tuple[str, ...], list[_Use]]]:
    """The parameters that may be stored otherwise, each with its gradient and its optimizer's states, and the nodes
    that use them as weights."""
    if held_by_caller(graph):
        return []
    uses = _uses(graph)
    groups = filter(None, (_group(graph, value, uses) for value in graph.values))
    return [(group, [u for v in group for u in uses.get(v, ()) if u.node.op in WEIGHTS]) for group in groups]


def _uses(graph: Graph) -> dict[str, list[_Use]]:
    """value -> who touches it. Programs' inputs and outputs are touched by their callers."""
    found: dict[str, list[_Use]] = {}
    for program in graph.programs:
        for node in program.nodes:
            for kind, values in (("in", node.inputs), ("out", node.outputs), ("up", node.updates)):
                for position, value in enumerate(values):
                    found.setdefault(value, []).append(_Use(program.name, node, f"{kind}{position}"))
    return found


def _group(graph: Graph, value: Value, uses: Mapping[str, Sequence[_Use]]) -> tuple[str, ...]:
    """A parameter, its gradient and what its optimizer keeps; empty where anything but convolutions and that update
    touches one of them, or its caller."""
    if value.role is not Role.PARAMETER or len(value.type.shape) != 4 or value.type.dtype is not DType.FLOAT32:
        return ()
    updates = [u.node for u in uses.get(value.id, ()) if u.operand == "up0" and u.node.op in ELEMENTWISE]
    callers = {v for p in graph.programs for v in (*p.inputs, *p.outputs)}
    if len(updates) > 1:
        return ()
    group = (value.id, *(v for node in updates for v in (*node.inputs, *node.updates[1:])))
    sums = [u.node for v in group for u in uses.get(v, ()) if u.operand == "up0" and u.node.op == GradientSum.name]
    updates, group = [*updates, *sums], (*group, *(v for node in sums for v in node.inputs))
    if callers.intersection(group):
        return ()
    for member in group:
        for use in uses.get(member, ()):
            if use.node not in updates and WEIGHTS.get(use.node.op) != use.operand:
                return ()
    return group


def _best(graph: Graph, schedules: Mapping[str, Schedule], users: Sequence[_Use]) -> Stored:
    """The first layout that some kernel wants and all can work with; plain where there is none."""
    found = {u: schedules[u.program].choices[u.node.id] for u in users}
    for op in WEIGHTS:
        for stored in dict.fromkeys(wanted(choice.facts) for use, choice in found.items() if use.node.op == op):
            if stored != PLAIN and all(_can(graph, use.node, choice, stored) for use, choice in found.items()):
                return stored
    return PLAIN


def _can(graph: Graph, node: Node, choice: Choice, stored: Stored) -> bool:
    """A processor's kernels that read plain weights would have to begin to pack."""
    packs = node.op == "conv2d_backward_weights" or bool(choice.facts.get("packed_bytes"))
    able = packs or choice.mode.kernel in DEVICE_KERNELS
    return able and takes(signature_of(graph, node), choice.mode, choice.facts, stored)


def given(graph: Graph, node: Node, choice: Choice, stored: Stored) -> Choice:
    """How a node runs on weights stored so: without what packs them, on a processor its first stage, if that is how it
    wants them."""
    facts = {**choice.facts, **{k: v for k, v in zip(("stored_o", "stored_i"), stored, strict=True) if v}}
    if wanted(choice.facts) != stored:
        return choice._replace(facts=facts)
    kept = unpacked(facts)
    stages = running(op_named(node.op), choice.mode).stage_count(signature_of(graph, node), choice.mode, kept)
    return choice._replace(facts=kept, stage_ns=choice.stage_ns[-stages:])
