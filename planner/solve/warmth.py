"""Pass *warmth*: how warm every node finds its operands (costs/residency.py), before modes and offsets are decided.

Which bytes a value takes over from one that has died decides how warm it is, and that is known when everything else is.
Here values are packed as if nodes ran one after the other, without scratch; the plan's own offsets come from the same
packing, and differ by what scratch and co-running nodes add.
"""

from collections.abc import Mapping, Sequence

from planner.costs.residency import cold_fractions
from planner.graph.model import Graph, Node
from planner.ops.base import Mode
from planner.solve.liveness import liveness
from planner.solve.offsets import Effort, pack
from planner.solve.schedule import one_at_a_time
from planner.solve.threads import Choice

_NO_MODE = Choice(Mode("", "", 1), {}, ())
"""Of a node that needs no scratch."""


def coldness(graph: Graph, orders: Mapping[str, Sequence[Node]], cache_bytes: int) -> dict[str, dict[str, float]]:
    """program -> node -> share of its operands' bytes that are out of the cache when it starts, 0..1. `orders`: those
    of all programs."""
    places: dict[str, tuple[int, int]] = {}
    if cache_bytes:
        schedules = {
            name: one_at_a_time(name, order, dict.fromkeys((n.id for n in order), _NO_MODE))
            for name, order in orders.items()
        }
        live = liveness(graph, schedules)
        offsets = pack(live.blocks, effort=Effort(search=0)).offsets
        sizes = {v.id: v.type.bytes for v in graph.values}
        places = {v: (offsets[r], offsets[r] + sizes[v]) for v, r in live.root.items() if r in offsets}
    return {name: cold_fractions(graph, order, places, cache_bytes) for name, order in orders.items()}
