"""Which planned values still have their bytes when a program has ended: `Executor.value` reads only those."""

from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph, Role
from planner.plan.expand import expanded
from planner.plan.lifetimes import owner
from planner.plan.schema import Plan, ProgramPlan, parse_slice


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
    order = [plan.program[program].node[name] for name in _started(plan.program[program])]
    known = expanded(graph, plan).program[program].node
    makers = [place for place, n in enumerate(order) if root in known[n.node].outputs or value in known[n.node].outputs]
    if not makers and graph.value[root].role not in PERSISTENT:
        raise UserError("SP1614", f"{program}, which ran last, does not compute value {value}", "run what computes it")
    placed = plan.placement[value]
    for node_plan in order[max(makers, default=-1) + 1 :]:
        node = known[node_plan.node]
        written = [plan.placement[v] for v in node.writes]
        spans = [(p.value, p.offset, p.bytes) for p in written if p.pool == placed.pool]
        if node_plan.scratch_bytes and placed.pool == plan.pools[0].name:
            spans.append(("its scratch", node_plan.scratch_offset, node_plan.scratch_bytes))
        for other, offset, size in spans:
            if offset < placed.offset + placed.bytes and placed.offset < offset + size:
                raise UserError(
                    "SP1614",
                    f"value {value} shares its bytes with {other} of node {node.id}, which wrote over it",
                    f"plan with --keep {value} (PlanOptions.keep), or run a program that computes it last",
                )


def _started(program: ProgramPlan) -> list[str]:
    """The nodes that run, by their first slices in one order that lanes and waits allow: of two on the same bytes, all
    such orders have the same one first. The plan's list of nodes need not be one of them, once its lines were moved."""
    heads = [0] * len(program.lanes)
    done: set[str] = set()
    found: dict[str, None] = {}
    moved = True
    while moved:
        moved = False
        for lane, entries in enumerate(program.lanes):
            while heads[lane] < len(entries):
                entry = entries[heads[lane]]
                if not all(done.issuperset(program.waited(wait)) for wait in entry.wait):
                    break
                done.add(entry.run)
                found.setdefault(parse_slice(entry.run)[0])
                heads[lane], moved = heads[lane] + 1, True
    return list(found)
