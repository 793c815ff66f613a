"""The runs of a program: one, or two where its caller takes over in between, with what the first one computed.

A plan whose loss is the caller's has nodes `caller_gradient`: they and what follows from them, in a lane or by a wait,
are the second run; everything else is the first. So the caller computes the loss between the passes, and the second
run finds the activations of the first where they were left.
"""

from dataclasses import dataclass

from planner.graph.model import Graph, Node, Program
from planner.ops.caller_gradient import CallerGradient, CallerGradientAttrs
from planner.plan.lifetimes import owners
from planner.plan.schema import Entry, Plan, ProgramPlan, parse_slice


@dataclass(frozen=True)
class Part:
    """`name`: unique in the plan. `inputs`: of the graph, in the program's order: what the run reads."""

    name: str
    lanes: tuple[tuple[Entry, ...], ...]
    inputs: tuple[str, ...]


def parts(plan: Plan, graph: Graph, program: ProgramPlan) -> tuple[Part, ...]:
    """`graph`: expanded. The plan has been checked."""
    known = graph.program[program.name]
    waiting = _waiting(known)
    if not waiting:
        return (Part(program.name, program.lanes, known.inputs),)
    first = _first_of_second(program, waiting)
    before = tuple(entries[:n] for entries, n in zip(program.lanes, first, strict=True))
    behind = tuple(entries[n:] for entries, n in zip(program.lanes, first, strict=True))
    return (
        Part(f"{program.name}_forward", before, _inputs(plan, known, before, returned=predictions(graph))),
        Part(f"{program.name}_backward", behind, _inputs(plan, known, behind)),
    )


def predictions(graph: Graph) -> tuple[str, ...]:
    """What the caller's loss depends on, in the order in which the model returns it; nothing where the plan has a loss
    of its own. `graph`: expanded, so these are the instances that lie there when the first run ends."""
    program = graph.program.get("train_step")
    for node in _waiting(program) if program else ():
        assert isinstance(node.attrs, CallerGradientAttrs)
        return node.inputs[1 : 1 + node.attrs.predictions]
    return ()


def _waiting(program: Program) -> list[Node]:
    return [n for n in program.nodes if n.op == CallerGradient.name and n.inputs[0] in program.inputs]


def _first_of_second(program: ProgramPlan, waiting: list[Node]) -> list[int]:
    """By lane: its first entry that can't run before the caller has given the gradients."""
    behind = {n.id for n in waiting}
    first = [len(entries) for entries in program.lanes]
    late: set[str] = set()
    """Slices of the second run; and stages, as waits name them, that have one."""
    changed = True
    while changed:
        changed = False
        for lane, entries in enumerate(program.lanes):
            for i, entry in enumerate(entries[: first[lane]]):
                if parse_slice(entry.run)[0] in behind or not late.isdisjoint(entry.wait):
                    first[lane], changed = i, True
                    break
            for entry in entries[first[lane] :]:
                node, stage, _ = parse_slice(entry.run)
                late |= {entry.run, f"{node}/{stage}#*"}
    return first


def _inputs(
    plan: Plan, program: Program, lanes: tuple[tuple[Entry, ...], ...], returned: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The program's inputs that nodes of these lanes read, also through views, or that are returned."""
    nodes = {parse_slice(e.run)[0] for entries in lanes for e in entries}
    roots = owners(plan)
    read = {roots.get(v, v) for v in (*returned, *(v for n in nodes for v in program.node[n].reads))}
    return tuple(i for i in program.inputs if i in read)
