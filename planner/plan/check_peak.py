"""Part of `check`: the stated peak is neither below what is certainly alive at once nor above the allocation. It is the
first pool's: what lies in slower ones is not counted."""

from collections.abc import Mapping

import numpy as np

from planner.graph.model import Graph
from planner.plan.check_memory import protected
from planner.plan.check_order import Order
from planner.plan.check_structure import Slices
from planner.plan.check_touches import Touches, survivors
from planner.plan.findings import Report, shown_number
from planner.plan.lifetimes import end_of_chain
from planner.plan.schema import Placement, Plan


def check_peak(
    graph: Graph,
    plan: Plan,
    slices: Slices,
    placements: Mapping[str, Placement],
    roots: Mapping[str, str],
    touched: Touches,
    order: Order,
    report: Report,
) -> None:
    """SP1429. Bytes are needed from the first to the last access in one legal order, which no execution order of
    the plan can be sure to undercut; a value and what overwrites it in place count once."""
    groups: dict[str, list[int]] = {}
    known: dict[str, str] = {}

    def storage(value: str) -> str:
        """The value that brought the bytes."""
        return end_of_chain(value, lambda v: roots.get(placements[v].shares, ""), known)

    for number, tensor in enumerate(touched.tensors):
        if tensor.value and placements[tensor.value].pool != plan.pools[0].name:
            continue
        name = storage(tensor.value) if tensor.value else f"{tensor.node}/{tensor.part}"
        groups.setdefault(name, []).append(number)
    outputs = {storage(v) for v in survivors(slices.program, plan, roots)}
    keep = protected(graph)
    always = sum(graph.value[v].type.bytes for v in keep if v in placements and not placements[v].shares)
    end = len(order.rank) + 1
    change = np.zeros(end + 1, np.int64)
    for name, members in groups.items():
        accesses = np.concatenate([touched.of(m) for m in members])
        if name in keep or not len(accesses):
            continue
        ranks = order.rank[touched.slice[accesses]]
        size = max(touched.tensors[m].bytes for m in members)
        change[int(ranks.min())] += size
        change[end if name in outputs else int(ranks.max()) + 1] -= size
    alive = always + int(np.cumsum(change).max(initial=0))
    stated, arena = slices.plan.peak_bytes, plan.pools[0].arena
    if stated < alive:
        message = f"the stated peak of {shown_number(stated)} bytes is too low: {alive} are alive at once"
        report.add("SP1429", slices.plan.name, message)
    elif stated > arena:
        message = f"the stated peak of {shown_number(stated)} bytes exceeds the arena's {arena}"
        report.add("SP1429", slices.plan.name, message)
