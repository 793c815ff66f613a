"""What bytes cost that two lanes touch in turn, and how much of it is in a plan's times.

What a lane wrote last lies in its core's own caches. Two things are charged, per KiB (`Crossing`):

* **fetch**: reading, or writing over, what another lane wrote last. The cache line moves.
* **reclaim**: writing over what another lane read since it was written. That lane's copy has to go first.

Both are measured in a plain loop, which the processor sees coming. A kernel that jumps about pays more, as it does for
bytes that no cache holds: `Crossed.factor` times as much.
"""

from collections.abc import Mapping
from typing import NamedTuple

from planner.plan.schema import Crossed, NodePlan, Plan


class Crossing(NamedTuple):
    """ns per KiB, beyond what the lane's own bytes cost in the outermost cache."""

    fetch_ns: float = 0.0
    reclaim_ns: float = 0.0
    stream_ns: float = 0.0
    """The same for bytes that no cache holds; 0: not known."""

    def price(self, crossed: Crossed) -> float:
        """ns that a slice's bytes cost."""
        return (crossed.fetched * self.fetch_ns + crossed.reclaimed * self.reclaim_ns) / 1024 * crossed.factor


def planned_crossing(plan: Plan) -> Crossing:
    """What the plan's times assume."""
    return Crossing(plan.sharing.fetch_ns, plan.sharing.reclaim_ns)


def crossing_ns(node: NodePlan, crossing: Crossing) -> tuple[int, ...]:
    """The part of each stage's time that is due to other lanes' caches; empty where nothing is."""
    return tuple(round(crossing.price(c)) for c in node.crossed)


def times_at(plan: Plan, program: str, crossing: Crossing) -> Mapping[str, tuple[int, ...]]:
    """node -> ns per stage if lanes were as near to each other, or as far apart, as `crossing` says, for the nodes
    that it matters to."""
    assumed = planned_crossing(plan)
    found = {}
    for node in plan.program[program].nodes:
        if node.crossed:
            parts = zip(node.stage_ns, crossing_ns(node, assumed), crossing_ns(node, crossing), strict=True)
            found[node.node] = tuple(max(1, ns - before + now) for ns, before, now in parts)
    return found
