"""What slices find in other lanes' caches: line by line by hand, and in whole plans."""

import pytest

from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.plan.check import check
from planner.plan.crossing import crossing_ns, planned_crossing
from planner.plan.schema import MOST_STRAINED, Crossed, Plan
from planner.plan.simulate import replay
from planner.solve import crossing
from planner.solve.crossing import LINE, _Caches, _Touched
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target
from tests.graphs import small_net

FREE, FETCH, RECLAIM = "", "fetch", "reclaim"


def touched(step: str) -> _Touched:
    """`Aw`: lane 0 writes the only line; `Br`: lane 1 reads it."""
    lines = [slice(0, 1)]
    lane = "AB".index(step[0])
    return _Touched(lane, lines if step[1] == "r" else [], lines if step[1] == "w" else [])


@pytest.mark.parametrize(
    ("before", "write", "read"),
    [
        ("Aw Aw Aw", FREE, FREE),
        ("Bw Bw Ar", FREE, FREE),  # the line moved here with its right to be written
        ("Aw Bw Ar", FREE, FREE),
        ("Ar Br Aw", FREE, FREE),
        ("Aw Aw Bw", FETCH, FETCH),
        ("Aw Bw Br", FETCH, FETCH),
        ("Aw Aw Br", RECLAIM, FETCH),
        ("Aw Br Ar", RECLAIM, FREE),
        ("Bw Ar Br", RECLAIM, FREE),
        ("Bw Br Ar", FREE, FREE),
    ],
)
def test_a_line_after_three_accesses(before: str, write: str, read: str) -> None:
    """As measured: 4 ns per KiB, 24 and 124 where the lanes share no cache."""
    for last, expected in (("Aw", write), ("Ar", read)):
        caches = _Caches(1)
        for step in before.split():
            caches.begin_node()
            caches.touch(touched(step))
        caches.begin_node()
        found = caches.counted(touched(last))
        assert found == Crossed(fetched=LINE * (expected == FETCH), reclaimed=LINE * (expected == RECLAIM))


def test_what_a_node_touched_itself_and_what_nobody_did_is_free() -> None:
    caches = _Caches(1)
    caches.begin_node()
    assert caches.counted(touched("Ar")) == Crossed(fetched=0, reclaimed=0)
    caches.touch(touched("Bw"))
    assert caches.counted(touched("Ar")) == Crossed(fetched=0, reclaimed=0)


def test_a_line_that_is_read_and_written_comes_once() -> None:
    caches = _Caches(1)
    caches.begin_node()
    caches.touch(touched("Bw"))
    caches.begin_node()
    both = _Touched(0, [slice(0, 1)], [slice(0, 1)])
    assert caches.counted(both) == Crossed(fetched=LINE, reclaimed=0)


def planned(fetch: float, reclaim: float, **changes: object) -> tuple[Plan, Target, CostTable]:
    target = load_target("cpu2")
    costs = modelled_costs(small_net(), target)
    costs = costs.model_copy(update={"fetch_ns": fetch, "reclaim_ns": reclaim, **changes})
    return make_plan(small_net(), target, costs, PlanOptions(policy="sequential")), target, costs


def test_times_hold_what_crossing_costs_and_say_so() -> None:
    free, _, _ = planned(0, 0)
    assert all(not n.crossed for p in free.programs for n in p.nodes)
    plan, target, costs = planned(20, 120)
    assert check(small_net(), plan, target) == []
    program, before = plan.program["train_step"], free.program["train_step"]
    for node in program.nodes:
        if node.crossed:
            more = crossing_ns(node, planned_crossing(plan))
            assert tuple(a - b for a, b in zip(node.stage_ns, more, strict=True)) == before.node[node.node].stage_ns
        else:
            assert node.stage_ns == before.node[node.node].stage_ns
    # The head's gradient is made in columns and applied in halves.
    assert program.node["fc.weight.update"].crossed[0].fetched > 0
    assert program.predicted_ns > before.predicted_ns
    assert abs(replay(plan, program, sync_ns=costs.sync_ns).total_ns + costs.launch_ns - program.predicted_ns) < 1


def test_a_kernel_that_is_slow_on_cold_bytes_pays_more() -> None:
    plain, _, _ = planned(20, 120)
    strained, _, _ = planned(20, 120, stream_ns=1e-3)
    assert {c.factor for n in plain.program["train_step"].nodes for c in n.crossed} == {1.0}
    assert max(c.factor for n in strained.program["train_step"].nodes for c in n.crossed) > 1


def test_a_plan_by_a_loop_that_took_nothing_can_be_read() -> None:
    """What the loop takes on cold bytes is the difference of two measured times, and may be next to nothing."""
    plan, _, _ = planned(20, 120, stream_ns=1e-9)
    assert {c.factor for n in plan.program["train_step"].nodes for c in n.crossed} <= {1.0, MOST_STRAINED}
    assert Plan.model_validate(plan.model_dump()) == plan


def test_what_the_caches_cannot_hold_and_what_would_take_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    target = load_target("cpu2")
    costs = modelled_costs(small_net(), target).model_copy(update={"fetch_ns": 20.0})
    caches = target.cpu.caches.model_copy(update={"l3": 4096})
    small = target.model_copy(update={"cpu": target.cpu.model_copy(update={"caches": caches})})
    found = make_plan(small_net(), small, costs, PlanOptions(policy="sequential"))
    assert not any(n.crossed for n in found.program["train_step"].nodes)
    monkeypatch.setattr(crossing, "MOST_SLICES", 10)
    found = make_plan(small_net(), target, costs, PlanOptions(policy="sequential"))
    assert not any(n.crossed for n in found.program["train_step"].nodes)
