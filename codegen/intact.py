"""Which planned values still have their bytes when a program has ended: `Executor.value` reads only those."""

from collections.abc import Iterator
from typing import NamedTuple

from planner.errors import UserError
from planner.graph.dependencies import view_roots
from planner.graph.model import PERSISTENT, Graph, Node, Role
from planner.ops.base import op_named
from planner.ops.device import running
from planner.ops.signature import signature_of
from planner.plan.expand import expanded
from planner.plan.lifetimes import owner
from planner.plan.schema import NodePlan, Plan, ProgramPlan, parse_slice


def require_intact(graph: Graph, plan: Plan, program: str | None, value: str) -> None:
    """SP1614 unless `value` has in the arena what `program`, which ran last, computed. Parameters and states always
    are there. None: nothing ran yet."""
    if value not in graph.value or value not in plan.placement:
        raise UserError("SP1614", f"plan {plan.name} has no value {value[:80]!r}", "name a value of its graph.json")
    root = owner(plan, value)
    if graph.value[value].role in PERSISTENT:
        return
    if graph.value[root].role is Role.INPUT or any(root in p.inputs for p in graph.programs):
        raise UserError("SP1614", f"value {value} is an input, which may be read where the caller has it", "keep yours")
    if program is None:
        raise UserError("SP1614", f"value {value} has not been computed yet", "run a step first")
    placed, wide = plan.placement[value], expanded(graph, plan)
    # Whose bytes these are says less than what a view shows: they may have been taken over in place before.
    source = view_roots(graph, graph.program[program]).get(value, value)
    spans = [
        (node, span)
        for node, stage in _started(plan.program[program])
        for span in _written(wide, plan, wide.program[program].node[node], plan.program[program].node[node], stage)
    ]
    makers = [place for place, (_, span) in enumerate(spans) if span.name == source]
    if not makers and graph.value[root].role not in PERSISTENT:
        raise UserError("SP1614", f"{program}, which ran last, does not compute value {value}", "run what computes it")
    for node, span in spans[max(makers, default=-1) + 1 :]:
        apart = span.offset >= placed.offset + placed.bytes or placed.offset >= span.offset + span.bytes
        if span.pool == placed.pool and not apart:
            raise UserError(
                "SP1614",
                f"value {value} shares its bytes with {span.name or 'its scratch'} of node {node}, which wrote over it",
                f"plan with --keep {value} (PlanOptions.keep), or run a program that computes it last",
            )


class _Span(NamedTuple):
    """Bytes that a stage writes: of a value, or, without a name, of the node's scratch."""

    name: str
    pool: str
    offset: int
    bytes: int


def _written(graph: Graph, plan: Plan, node: Node, node_plan: NodePlan, stage: int) -> Iterator[_Span]:
    signature, mode = signature_of(graph, node), node_plan.mode
    op = running(op_named(node.op), mode)
    names = {f"out{i}": v for i, v in enumerate(node.outputs)} | {f"up{i}": v for i, v in enumerate(node.updates)}
    touched = (
        access
        for index in range(node_plan.slices)
        for access in op.accesses(signature, mode, stage, index, node_plan.facts)
    )
    for operand in dict.fromkeys(access.operand for access in touched if access.write):
        if operand in names:
            placed = plan.placement[names[operand]]
            yield _Span(placed.value, placed.pool, placed.offset, placed.bytes)
        else:
            yield _Span("", plan.pools[0].name, node_plan.scratch_offset, node_plan.scratch_bytes)


def _started(program: ProgramPlan) -> list[tuple[str, int]]:
    """The nodes' stages that run, by their first slices in one order that lanes and waits allow: of two that write the
    same bytes, all such orders have the same one first. (Not of nodes: one may pack weights while another still writes
    where its result will lie.) The plan's list of nodes need not be one of them, once its lines were moved."""
    heads = [0] * len(program.lanes)
    done: set[str] = set()
    found: dict[tuple[str, int], None] = {}
    moved = True
    while moved:
        moved = False
        for lane, entries in enumerate(program.lanes):
            while heads[lane] < len(entries):
                entry = entries[heads[lane]]
                if not all(done.issuperset(program.waited(wait)) for wait in entry.wait):
                    break
                done.add(entry.run)
                found.setdefault(parse_slice(entry.run)[:2])
                heads[lane], moved = heads[lane] + 1, True
    return list(found)
