"""Part of `check`: is every value stored in the layout that its nodes take it for?"""

from collections.abc import Mapping, Sequence

from planner.graph.model import DType, Graph
from planner.malformed import shown
from planner.ops.stored import (
    ELEMENTWISE,
    PLAIN,
    WEIGHTS,
    Stored,
    divides,
    held_by_caller,
    parse_stored,
    stored_as,
    takes,
)
from planner.plan.check_structure import PlannedNode, Slices, ask
from planner.plan.findings import Report
from planner.plan.schema import Plan

FLOATS = (DType.FLOAT32, DType.BFLOAT16)


def check_storage(graph: Graph, plan: Plan, programs: Sequence[Slices], report: Report) -> None:
    """SP1438: a layout that the value cannot have, or that one of its users does not know of. `graph`: expanded."""
    callers = {v for p in graph.programs for v in (*p.inputs, *p.outputs)}
    layouts: dict[str, Stored] = {}
    for placement in plan.placements:
        if not placement.layout:
            continue
        name, value = placement.value, graph.value.get(placement.value)
        stored = parse_stored(placement.layout)
        if value is None or stored is None or not divides(stored, value.type.shape):
            report.add("SP1438", "", f"value {shown(name)} cannot be stored as {shown(placement.layout)}")
        elif value.type.dtype not in FLOATS or name in callers or placement.pool != plan.pools[0].name:
            report.add("SP1438", "", f"value {name} is stored as {placement.layout}, but its caller takes it plain")
        else:
            layouts[name] = stored
    if layouts and held_by_caller(graph):
        report.add("SP1438", "", "weights are stored packed, but the caller holds them in the framework's layout")
    for slices in programs:
        for planned in slices.nodes:
            _check_node(planned, layouts, slices.plan.name, report)


def _check_node(planned: PlannedNode, layouts: Mapping[str, Stored], program: str, report: Report) -> None:
    node, stated = planned.node, stored_as(planned.plan.facts)
    lie = {
        f"{kind}{i}": layouts.get(value, PLAIN)
        for kind, values in (("in", node.inputs), ("out", node.outputs), ("up", node.updates))
        for i, value in enumerate(values)
    }
    lies = lie.pop(WEIGHTS[node.op]) if node.op in WEIGHTS else PLAIN
    if stated != lies:
        names = " but ".join(s.text or "plain" for s in (stated, lies))
        report.add("SP1438", program, f"node {node.id} takes its weights for {names} is how they are stored")
    elif lies != PLAIN and not ask(
        lambda: takes(planned.signature, planned.plan.mode, planned.plan.facts, lies), node.id, program, report
    ):
        report.add("SP1438", program, f"node {node.id} in its mode cannot use weights stored as {lies.text}")
    if len(set(lie.values())) > 1 or (node.op not in ELEMENTWISE and any(s != PLAIN for s in lie.values())):
        report.add("SP1438", program, f"node {node.id} ({node.op}) uses values whose layouts it does not know")
