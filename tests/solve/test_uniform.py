"""Uniform settings (inter-op x intra-op threads): `auto` is never behind the best of them, nor behind sequential."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve import pipeline
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import deep_net, random_net, small_net

TARGET = load_target("cpu16")
LANES = 4


def total_ns(plan: Plan) -> int:
    return sum(p.predicted_ns for p in plan.programs)


def shaken(graph: Graph, seed: int) -> CostTable:
    """Modelled times, each off by up to a factor of three."""
    table, draw = modelled_costs(graph, TARGET, lanes=LANES), random.Random(seed)
    entries = []
    for entry in table.entries:
        factor = draw.uniform(0.5, 1.5)
        times = {k: tuple(factor * t for t in getattr(entry, k)) for k in ("warm_ns", "cold_ns")}
        entries.append(entry.model_copy(update=times))
    return table.model_copy(update={"entries": tuple(entries)})


def uniform(count: int, strategies: tuple[int, ...] = (3,)) -> PlanOptions:
    return PlanOptions(policy="liu", strategies=strategies, uniform=count, lanes=LANES)


def test_every_node_gets_the_count_or_the_most_below() -> None:
    graph = small_net()
    costs = modelled_costs(graph, TARGET, lanes=LANES)
    plan = make_plan(graph, TARGET, costs, uniform(2))
    assert check(graph, plan, TARGET) == []
    slices = {n.slices for n in plan.programs[0].nodes}
    assert slices <= {1, 2} and 2 in slices


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_auto_is_never_behind_sequential_or_a_uniform_setting(seed: int) -> None:
    graph = random_net(random.Random(seed))
    costs = shaken(graph, seed)
    auto = make_plan(graph, TARGET, costs, PlanOptions(lanes=LANES))
    assert check(graph, auto, TARGET) == []
    others = [PlanOptions(policy="sequential", lanes=LANES), uniform(1), uniform(2)]
    others += [uniform(1, ()), uniform(2, ())]
    others += [PlanOptions(policy="liu", strategies=s, lanes=LANES) for s in ((1, 3), (1, 2, 3))]
    for options in others:
        assert total_ns(auto) <= total_ns(make_plan(graph, TARGET, costs, options)), options


def with_signals(graph: Graph, sync_ns: float, source: str) -> CostTable:
    table = shaken(graph, 0)
    entries = tuple(e.model_copy(update={"source": source}) for e in table.entries)
    return table.model_copy(update={"entries": entries, "sync_ns": sync_ns})


def test_where_signals_cost_more_than_lanes_gain_everything_runs_on_one() -> None:
    graph = deep_net(6, Optimizer(lr=0.1))
    costs = with_signals(graph, 2000.0, "modelled")
    auto = make_plan(graph, TARGET, costs, PlanOptions(lanes=LANES))
    assert total_ns(auto) <= total_ns(make_plan(graph, TARGET, costs, uniform(1, ())))
    others = (make_plan(graph, TARGET, costs, PlanOptions(policy=p, lanes=LANES)) for p in ("sequential", "liu"))
    assert total_ns(auto) < 0.9 * min(map(total_ns, others))


@pytest.mark.parametrize("seed", [1, 3])
def test_signals_that_are_charged_and_not_waited_for_rule_nothing_out(seed: int) -> None:
    graph = random_net(random.Random(seed), nodes=5)
    costs = with_signals(graph, 3000.0, "measured")
    auto = make_plan(graph, TARGET, costs, PlanOptions(lanes=LANES))
    for options in (uniform(1), uniform(2), PlanOptions(policy="liu", strategies=(1, 3), lanes=LANES)):
        assert total_ns(auto) <= pipeline.SURE * total_ns(make_plan(graph, TARGET, costs, options)), options


def test_what_is_too_slow_without_a_budget_meets_budgets_that_nothing_else_meets() -> None:
    """On one lane no node needs scratch for sums over slices."""
    graph = small_net()
    costs = modelled_costs(graph, TARGET, lanes=LANES)
    least = [smallest(graph, costs, o) for o in (PlanOptions(lanes=LANES), uniform(1, ()), uniform(4, ()))]
    assert least[0] == least[1] < least[2]
    at_least = PlanOptions(lanes=LANES, memory_budget=least[0])
    plan = make_plan(graph, TARGET, costs, at_least)
    assert plan.pools[0].arena == least[0] and check(graph, plan, TARGET) == []


def smallest(graph: Graph, costs: CostTable, options: PlanOptions) -> int:
    """The smallest budget that can be met, as told."""
    with pytest.raises(UserError, match="SP1301") as caught:
        make_plan(graph, TARGET, costs, options.model_copy(update={"memory_budget": 1000}))
    found = re.search(r"can meet is (\d+) bytes", caught.value.fix)
    assert found
    return int(found[1])


def test_of_a_large_graph_everything_is_scheduled_and_what_ends_first_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = small_net()
    costs = modelled_costs(graph, TARGET, lanes=16)
    said: list[str] = []

    def weighed() -> tuple[list[str], list[str]]:
        said.clear()
        make_plan(graph, TARGET, costs, PlanOptions(lanes=16), said.append)
        lines = [line for line in said if line.startswith("auto: liu") and "3" in line.split(":")[1]]
        return sorted(line.split(":")[1] for line in lines), [
            x for x in lines if "not worth" not in x and "as " not in x
        ]

    small, all_planned = weighed()
    monkeypatch.setattr(pipeline, "SMALL_GRAPH", 1)
    large, planned = weighed()
    assert large == small and len(planned) == 2 < len(all_planned)
