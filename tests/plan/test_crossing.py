"""Prices of bytes in other lanes' caches."""

from planner.plan.crossing import Crossing, crossing_ns, times_at
from planner.plan.schema import Crossed, Plan, Sharing
from tests.plan.mutations import edit_program
from tests.plan.plans import PLAN, STEP


def crossing_plan() -> Plan:
    """conv1 fetches 2 KiB and reclaims 1 KiB in its last stage, at 10 and 100 ns per KiB, doubled: 240 ns."""
    nodes = []
    for node in PLAN.program[STEP].nodes:
        if node.node == "conv1":
            crossed = [Crossed(fetched=0, reclaimed=0)] * (node.stages - 1)
            crossed.append(Crossed(fetched=2048, reclaimed=1024, factor=2.0))
            times = (*node.stage_ns[:-1], node.stage_ns[-1] + 240)
            node = node.model_copy(update={"crossed": tuple(crossed), "stage_ns": times})
        nodes.append(node)
    plan = PLAN.model_copy(update={"sharing": Sharing(fetch_ns=10, reclaim_ns=100)})
    return edit_program(plan, STEP, nodes=tuple(nodes))


def test_a_price() -> None:
    node = crossing_plan().program[STEP].node["conv1"]
    assert crossing_ns(node, Crossing(10, 100))[-1] == 240
    assert crossing_ns(PLAN.program[STEP].node["conv1"], Crossing(10, 100)) == ()


def test_times_with_lanes_elsewhere() -> None:
    before, plan = PLAN.program[STEP].node["conv1"].stage_ns, crossing_plan()
    assert times_at(plan, STEP, Crossing()) == {"conv1": before}
    assert times_at(plan, STEP, Crossing(1, 10)) == {"conv1": (*before[:-1], before[-1] + 24)}
