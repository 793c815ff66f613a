"""Pass *liveness*: who shares bytes in place, and from which node to which each block of bytes is needed.

Blocks are storage roots (a value together with the values that take over its bytes) and scratch. Times are positions
in the concatenation of all programs' orders: programs never run at the same time, so they may share bytes too.
Where nodes co-run, a node holds its bytes up to the first one that starts after its predicted end (Schedule.reach):
two that run side by side get bytes of their own, or the waits for reused bytes would put them one after the other.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from planner.graph.model import PERSISTENT, Graph, Node, Program
from planner.ops.base import op_named, scratch_bytes
from planner.ops.device import running
from planner.ops.signature import signature_of
from planner.solve.schedule import Schedule
from planner.solve.threads import Choice
from planner.units import Bytes


@dataclass(frozen=True)
class Block:
    """Bytes needed from position `lower` up to, not including, `upper` (half-open)."""

    id: str
    lower: int
    upper: int
    size: Bytes


@dataclass(frozen=True)
class Liveness:
    blocks: tuple[Block, ...]
    """One per storage root and per node with scratch (`scratch:<program>:<node>`)."""
    root: Mapping[str, str]
    """value -> the value whose bytes it uses (itself when it has its own)."""
    shares: Mapping[str, str]
    """value -> the value whose bytes it takes over directly."""


def scratch_id(program: str, node: str) -> str:
    return f"scratch:{program}:{node}"


def liveness(graph: Graph, schedules: Mapping[str, Schedule], keep: Collection[str] = ()) -> Liveness:
    """`schedules` by program name. `keep`: values that stay until their program ends, like its outputs."""
    shares: dict[str, str] = {}
    blocks: list[Block] = []
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    start = 0
    for program in graph.programs:
        order, choices = schedules[program.name].order, schedules[program.name].choices
        reach = schedules[program.name].reach
        shares.update(_shared(graph, program, schedules[program.name], keep))
        for position, node in enumerate(order, start):
            until = start + reach[position - start]
            for value in (*node.reads, *node.writes):
                first.setdefault(value, position)
                last[value] = max(until, last.get(value, 0))
            size = _scratch_size(graph, node, choices[node.id])
            if size:
                blocks.append(Block(scratch_id(program.name, node.id), position, until, size))
        for value in _staying(program, keep):
            last[value] = start + len(order) + 1
        start += len(order) + 1
    root = {value.id: _root(value.id, shares) for value in graph.values}
    spans: dict[str, tuple[int, int]] = {}
    whole = {v.id for v in graph.values if v.role in PERSISTENT}
    whole.update(v for p in graph.programs for v in p.inputs)
    for placed in graph.values:
        if placed.id not in first and placed.id not in whole:
            continue
        lower, upper = (0, start) if placed.id in whole else (first[placed.id], last[placed.id])
        known = spans.get(root[placed.id], (lower, upper))
        spans[root[placed.id]] = (min(lower, known[0]), max(upper, known[1]))
    blocks += [Block(r, lo, hi, graph.value[r].type.bytes) for r, (lo, hi) in spans.items()]
    return Liveness(tuple(blocks), root, shares)


def _staying(program: Program, keep: Collection[str]) -> set[str]:
    """What is wanted after the program's end."""
    return {*program.outputs, *(v for n in program.nodes for v in n.writes if v in keep)}


def _shared(graph: Graph, program: Program, schedule: Schedule, keep: Collection[str]) -> dict[str, str]:
    """Views, and outputs that overwrite an input which nobody reads any more when they are written."""
    order, choices = schedule.order, schedule.choices
    never = len(order) + 1
    read_until: dict[str, list[tuple[int, int]]] = {}
    """value -> (position, first position after it) of every reader"""
    for position, node in enumerate(order):
        for v in dict.fromkeys(node.reads):
            read_until.setdefault(v, []).append((position, schedule.reach[position]))
    for v in _staying(program, keep):
        read_until.setdefault(v, []).append((never, never))
    untouchable = {v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs)
    shares: dict[str, str] = {}
    group: dict[str, list[str]] = {}
    """root -> all values that use its bytes"""
    for position, node in enumerate(order):
        signature = signature_of(graph, node)
        op = op_named(node.op)
        view = op.alias(signature)
        taken: set[str] = set()
        for output, source in (view,) if view else op.inplace(signature, choices[node.id].mode):
            out, inp = node.outputs[output], node.inputs[source]
            root = _root(inp, shares)
            members = group.setdefault(root, [root])
            if not view:
                done = all(
                    until <= position or (p == position and v == inp)
                    for v in members
                    for p, until in read_until.get(v, ())
                )
                same_size = graph.value[out].type.bytes == graph.value[inp].type.bytes
                if out in shares or root in taken or root in untouchable or not done or not same_size:
                    continue
                if node.inputs.count(inp) > 1:
                    continue
            shares[out] = inp
            members.append(out)
            taken.add(root)
    return shares


def _root(value: str, shares: Mapping[str, str]) -> str:
    while value in shares:
        value = shares[value]
    return value


def _scratch_size(graph: Graph, node: Node, choice: Choice) -> Bytes:
    if not choice.stage_ns:
        return Bytes(0)
    op = running(op_named(node.op), choice.mode)
    return scratch_bytes(op.scratch(signature_of(graph, node), choice.mode, choice.facts))
