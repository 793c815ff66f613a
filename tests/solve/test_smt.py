"""Strategy 4: small nodes on the second threads of busy cores, by hand and on random graphs."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target
from planner.target.topology import Core
from tests.graphs import random_net
from tests.solve.test_corun import branches, scaled, table_of


def with_siblings(cores: int) -> Target:
    """cpu16's processor with `cores` cores of two threads each: processors 0..n-1, and n..2n-1 on the same cores."""
    base = load_target("cpu16").restrict(cores)
    doubled = tuple(Core(id=i, cpus=(i, cores + i), tile=i, l3=0) for i in range(cores))
    document = base.model_dump() | {"name": f"smt{cores}", "cpu": base.cpu.model_dump() | {"cores": doubled}}
    return Target.model_validate(document)


def planned(target: Target, times: dict[str, dict[int, float]], *strategies: int) -> Plan:
    graph = branches(len(times))
    table = table_of(graph, target, times)
    return make_plan(graph, target, table, PlanOptions(policy="liu", strategies=strategies))


def test_a_small_node_runs_beside_one_that_holds_all_cores() -> None:
    times: dict[str, dict[int, float]] = {"r0": {1: 4000, 4: 1000}, "r1": {1: 200}}
    target = with_siblings(4)
    alone = planned(target, times, 1, 3).programs[0]
    assert alone.predicted_ns == 1200
    plan = planned(target, times, 1, 3, 4)
    program = plan.programs[0]
    # r1 starts at 0 on the second thread of a core; both run at 1.03 / 2 there: r1 needs 200 / 0.515 = 388 ns, in which
    # the slice of r0 beside it does 200 of its 1000.
    assert program.node["r1"].slices == 1
    assert program.predicted_ns == pytest.approx(1000 + 200 / 0.515 - 200, abs=2)
    assert [lane.cpu for lane in plan.lanes] == [0, 1, 2, 3, 4]
    assert plan.sharing.cores == (0, 1, 2, 3, 0)
    starts = {name: start for name, _, start, _ in replay(plan, program, sync_ns=0).rows()}
    assert starts["r1/0#0"] == 0.0


def test_what_gets_less_done_together_waits() -> None:
    # On one slice r1 takes twice its best time: beside r0 both would get less done than one after the other.
    plan = planned(with_siblings(4), {"r0": {1: 1000, 4: 300}, "r1": {1: 200, 4: 100}}, 1, 3, 4)
    starts = {name: start for name, _, start, _ in replay(plan, plan.programs[0], sync_ns=0).rows()}
    assert starts["r0/0#0"] == 0.0 and starts["r1/0#0"] == 300.0
    assert len(plan.lanes) == 4  # second threads that nobody uses are no lanes


def test_targets_without_second_threads_ignore_it() -> None:
    target = load_target("cpu16")
    times: dict[str, dict[int, float]] = {"r0": {1: 4000, 16: 1000}, "r1": {1: 200, 16: 190}}
    assert planned(target, times, 1, 3, 4).programs == planned(target, times, 1, 3).programs


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from([(1, 3, 4), (1, 2, 3, 4), (4,)]), st.booleans(), st.integers(1, 8))
def test_every_schedule_is_safe(seed: int, strategies: tuple[int, ...], search: bool, cores: int) -> None:
    graph, target = random_net(random.Random(seed)), with_siblings(cores)
    costs = scaled(modelled_costs(graph, target), seed)
    plan = make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=strategies, search=search))
    assert check(graph, plan, target) == []
    assert len(plan.lanes) <= 2 * cores
    for program in plan.programs:
        assert program.predicted_ns >= program.bounds.best_ns


def test_knights_landing_is_planned_with_its_siblings() -> None:
    graph, target = random_net(random.Random(2), nodes=20), load_target("knl7250")
    costs = modelled_costs(graph, target)
    plan = make_plan(graph, target, costs, PlanOptions(policy="liu", strategies=(1, 2, 3, 4)))
    assert check(graph, plan, target) == []
    assert all(lane.cpu < 68 for lane in plan.lanes[:68])
    for lane in plan.lanes[68:]:
        assert 68 <= lane.cpu < 136
