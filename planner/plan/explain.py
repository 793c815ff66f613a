"""`explain OP|VALUE`: why a node runs as it does, or why a value lies where it lies (explain_node, explain_value)."""

import difflib

from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Frozen, Graph
from planner.plan.expand import expanded
from planner.plan.explain_node import NodeExplanation, explain_node
from planner.plan.explain_value import ValueExplanation, explain_value
from planner.plan.schema import Plan
from planner.plan.simulate import replay


class Explanation(Frozen):
    """All that goes by a name: a node in every program that has it, or a value."""

    name: str
    nodes: tuple[NodeExplanation, ...] = ()
    values: tuple[ValueExplanation, ...] = ()

    def document(self) -> dict[str, object]:
        """Everything, for `--json`."""
        return self.model_dump(mode="json")

    def text(self) -> str:
        parts = [*(n.lines() for n in self.nodes), *(v.lines() for v in self.values)]
        return "\n\n".join("\n".join(lines) for lines in parts)


def explain(name: str, graph: Graph, plan: Plan, costs: CostTable | None = None) -> Explanation:
    """`name`: a node's or a value's id, or the framework's name of a parameter. SP1450: neither.

    Without `costs` the alternatives and the measured peaks are missing, everything else is there.
    """
    graph = expanded(graph, plan)
    sync_ns = costs.sync_ns if costs else 200.0
    programs = [p for p in plan.programs if p.name in graph.program]
    timelines = {p.name: replay(plan, p, sync_ns=sync_ns) for p in programs}
    nodes = [
        explain_node(name, p, graph, plan, costs, timelines[p.name])
        for p in programs
        if name in p.node and name in graph.program[p.name].node
    ]
    values = [v.id for v in graph.values if name and name in (v.id, v.name)]
    if not nodes and not values:
        raise _unknown(name, graph, plan)
    plan = plan.model_copy(update={"programs": tuple(programs)})
    found = tuple(explain_value(v, graph, plan, timelines) for v in values)
    return Explanation(name=name, nodes=tuple(nodes), values=found)


def _unknown(name: str, graph: Graph, plan: Plan) -> UserError:
    known = {n.node for p in plan.programs for n in p.nodes} | set(graph.value) | {v.name for v in graph.values}
    known.discard("")
    inside = sorted(k for k in known if name.lower() in k.lower()) if name else []
    near = list(dict.fromkeys([*difflib.get_close_matches(name, sorted(known), 5, 0.5), *inside]))[:5]
    fix = f"did you mean {', '.join(near)}?" if near else "stepplan show lists the plan's nodes and largest values"
    return UserError("SP1450", f"plan {plan.name!r} has no node or value {name!r}", fix)
