"""Co-running within a budget: plans fit, are safe, compute the same, and are faster than one node at a time."""

import random
import re
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.costs.table import Beside as Neighbour
from planner.costs.table import CoRun, CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.ops.signature import signature_of
from planner.plan.check import check
from planner.plan.expand import expanded
from planner.plan.schema import Plan, ProgramPlan
from planner.plan.simulate import replay
from planner.solve.memory.beside import levels
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_pareto, make_plan
from planner.target.model import Target
from planner.target.text import load_target
from tests.arena import difference
from tests.graphs import random_losses, random_net
from tests.rewrites import with_pool

TRAIN = "train_step"
STEPS = (TRAIN, "predict", TRAIN)


def planned(graph: Graph, target: Target, costs: CostTable, lanes: int, budget: int | None) -> Plan:
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True, lanes=lanes, memory_budget=budget)
    return make_plan(graph, target, costs, options)


def least(graph: Graph, target: Target, costs: CostTable, lanes: int) -> int:
    with pytest.raises(UserError, match="SP1301") as caught:
        planned(graph, target, costs, lanes, 1000)
    found = re.search(r"can meet is (\d+) bytes", caught.value.fix)
    assert found
    return int(found[1])


def most_at_once(plan: Plan, program: ProgramPlan) -> int:
    """Nodes that run at the same time in a replay."""
    timeline = replay(plan, program, sync_ns=0.0)
    events = []
    for name, _, start, end in timeline.rows():
        events += [(start, 1, name.split("/")[0]), (end, 0, name.split("/")[0])]
    running: dict[str, int] = {}
    most = 0
    for _, begins, node in sorted(events):
        running[node] = running.get(node, 0) + (1 if begins else -1)
        most = max(most, sum(count > 0 for count in running.values()))
    return most


@settings(max_examples=5, deadline=None)
@example(seed=1798, share=0.0, lanes=2, slow=False)  # its weights overflow
@given(seed=st.integers(0, 10**6), share=st.floats(0, 1), lanes=st.integers(2, 8), slow=st.booleans())
def test_random_graphs_under_random_budgets(seed: int, share: float, lanes: int, slow: bool) -> None:
    rng = random.Random(seed)
    graph = random_losses(rng) if seed % 4 == 0 else random_net(rng, nodes=rng.randrange(3, 14))
    target = with_pool(load_target("cpu16")) if slow else load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=lanes)
    low, high = least(graph, target, costs, lanes), planned(graph, target, costs, lanes, None).pools[0].arena
    budget = round(low + share * (high - low))
    plan = planned(graph, target, costs, lanes, budget)
    assert plan.pools[0].arena <= budget
    assert check(graph, plan, target) == []
    assert difference(graph, plan, rng, [s for s in STEPS if s in plan.program]) == ""


@settings(max_examples=1, deadline=None)
@example(seed=109, slow=False)  # what runs again ends sooner than what needs not
@given(seed=st.integers(0, 10**6), slow=st.booleans())
def test_more_memory_is_never_slower(seed: int, slow: bool) -> None:
    """But for that: where all fits, running nodes again is not tried."""
    graph = random_net(random.Random(seed), nodes=8)
    target = with_pool(load_target("cpu16")) if slow else load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=4)
    low, high = least(graph, target, costs, 4), planned(graph, target, costs, 4, None).pools[0].arena
    budgets = [round(low + i * (high - low) / 4) for i in range(5)]
    plans = [planned(graph, target, costs, 4, budget) for budget in budgets]
    times = [sum(p.predicted_ns for p in plan.programs) for plan in plans]
    again = [any(p.rewrite for p in plan.programs) for plan in plans]
    for less, more in combinations(range(len(plans)), 2):
        assert times[more] <= times[less] * (1.05 if again[less] and not again[more] else 1)


def test_auto_co_runs_within_a_budget_where_it_co_runs_without_one() -> None:
    graph, target = random_net(random.Random(3), nodes=16), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=4)
    free = make_plan(graph, target, costs, PlanOptions(lanes=4))
    assert 3 in free.strategies
    budget = round(0.85 * free.pools[0].arena)
    times = {}
    for policy in ("auto", "sequential"):
        options = PlanOptions.model_validate({"policy": policy, "lanes": 4, "memory_budget": budget})
        plan = make_plan(graph, target, costs, options)
        assert plan.pools[0].arena <= budget and check(graph, plan, target) == []
        times[policy] = plan.program[TRAIN].predicted_ns
        if policy == "auto":
            assert plan.program[TRAIN].rewrite and 3 in plan.strategies
            assert most_at_once(plan, plan.program[TRAIN]) > 1
            # The modes, and so the bits, are those without a budget; what runs again runs as it did before.
            for node in free.program[TRAIN].nodes:
                same = plan.program[TRAIN].node[node.node]
                assert (same.kernel, same.dim, same.slices) == (node.kernel, node.dim, node.slices)
    assert times["auto"] < times["sequential"]


def test_the_front_of_time_against_memory_co_runs_too() -> None:
    graph, target = random_net(random.Random(2), nodes=16), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=16)
    plans = make_pareto(graph, target, costs, PlanOptions(lanes=16))
    assert [p.pools[0].arena for p in plans] == sorted((p.pools[0].arena for p in plans), reverse=True)
    rewritten = [p for p in plans if p.program[TRAIN].rewrite and 3 in p.strategies]
    assert rewritten and all(p.pools[0].capacity == target.memory.capacity for p in plans)
    for plan in plans:
        assert check(graph, plan, target) == []
    # A budget finds nothing slower than what the front shows for as much memory.
    shown = rewritten[len(rewritten) // 2]
    same = make_plan(graph, target, costs, PlanOptions(lanes=16, memory_budget=shown.pools[0].arena))
    assert sum(p.predicted_ns for p in same.programs) <= sum(p.predicted_ns for p in shown.programs)


def test_measured_pairs_that_run_side_by_side_are_told() -> None:
    graph, target = random_net(random.Random(2), nodes=12), load_target("cpu16")
    costs = modelled_costs(graph, target, lanes=4)
    free = planned(graph, target, costs, 4, None)
    nodes = {n.id: n for p in graph.programs for n in p.nodes}
    # Every pair of modes of the plan was measured, with a factor that nothing else has.
    modes = {
        (signature_of(graph, nodes[n.node]).text, n.kernel, n.dim, n.slices): Neighbour(
            signature=signature_of(graph, nodes[n.node]).text,
            kernel=n.kernel,
            dim=n.dim,
            slices=n.slices,
            factor=1.0625,
        )
        for n in free.program[TRAIN].nodes
        if n.stage_ns
    }
    told = tuple(CoRun(first=modes[a], second=modes[b]) for a in sorted(modes) for b in sorted(modes) if a <= b)
    costs = costs.model_copy(update={"coruns": told})
    plan = planned(graph, target, costs, 4, round(0.8 * free.pools[0].arena))
    assert plan.program[TRAIN].rewrite
    assert {s.factor for s in plan.program[TRAIN].slowdowns if not s.refused} == {1.0625}
    known = {n.id for n in expanded(graph, plan).program[TRAIN].nodes}
    assert all({s.node, s.beside} <= known for s in plan.program[TRAIN].slowdowns)


def test_levels_are_the_same_for_every_budget() -> None:
    found = list(levels(1000, 900))
    assert found == [1000, 970, 942, 915]
