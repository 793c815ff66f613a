"""Which values the caller wants to look at after a run: they keep their bytes until their program ends.

A kept value is treated like an output of its program: nothing overwrites it in place, and its bytes are not used
again. That costs memory, and nothing else.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph
from planner.ops.base import op_named
from planner.ops.signature import signature_of


def kept_values(graph: Graph, wanted: Sequence[str]) -> tuple[str, ...]:
    """Ids of the computed values that `wanted` names, in the graph's order. Patterns as in a shell (`layer1.*`) leave
    out what cannot be kept.

    SP1304: no node computes such a value, or it is only a view of a parameter or state, which the step changes.
    """
    made = {v for p in graph.programs for n in p.nodes for v in n.outputs}
    changing = views_of_state(graph)
    found: set[str] = set()
    for name in wanted:
        if name in changing:
            raise UserError(
                "SP1304",
                f"value {name} is only a view of {changing[name]}, which a step changes",
                f"take {changing[name]} from state_dict() before the step",
            )
        fitting = [v for v in made if v not in changing and fnmatchcase(v, name)]
        if not fitting:
            raise UserError(
                "SP1304",
                f"no node of the graph computes a value {name[:80]!r} to keep",
                "name an output of a node of graph.json, or a pattern such as 'layer1.*'; parameters always stay",
            )
        found.update(fitting)
    return tuple(v.id for v in graph.values if v.id in found)


def views_of_state(graph: Graph) -> dict[str, str]:
    """View -> the parameter or state whose bytes it shows."""
    shown = {v.id: v.id for v in graph.values if v.role in PERSISTENT}
    for program in graph.programs:
        for node in program.nodes:
            view = op_named(node.op).alias(signature_of(graph, node))
            if view and node.inputs[view[1]] in shown:
                shown[node.outputs[view[0]]] = shown[node.inputs[view[1]]]
    return {view: source for view, source in shown.items() if view != source}
