"""Where nothing fits the smallest budget is told at once: it can be met, and the bound that says so holds for all
decisions."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, TensorType
from planner.graph.optimizer import Optimizer
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve.least import Least
from planner.solve.memory.frontier import footprints, search_of
from planner.solve.memory.search import Search
from planner.solve.memory.steps import steps
from planner.solve.options import PlanOptions
from planner.solve.pipeline import FASTER, LITTLE, make_plan
from planner.target.text import load_target
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter

TARGET = load_target("cpu16")


def chain(depth: int, batch: int = 64, width: int = 32) -> Graph:
    """Too many nodes for the plans of every level to be compared."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(batch, width)))
    labels = b.input("labels", TensorType(shape=(batch,), dtype=DType.INT64))
    for layer in range(depth):
        (y,) = b.op("tanh", [layers.linear(b, x, width, name=f"fc{layer}")], name=f"act{layer}")
        x = layers.add(b, y, x, name=f"add{layer}")
    logits = layers.linear(b, x, 10, name="fc")
    return b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(lr=0.1))


def within(graph: Graph, budget: int, lanes: int) -> Plan:
    options = PlanOptions(lanes=lanes, memory_budget=budget)
    return make_plan(graph, TARGET, modelled_costs(graph, TARGET, lanes=lanes), options)


@pytest.mark.parametrize("lanes", [1, 4])
def test_the_smallest_budget_is_told_without_a_search_and_can_be_met(
    lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = chain(16)

    def no_search(*_: object) -> None:
        raise AssertionError("searched")

    with monkeypatch.context() as patched:
        patched.setattr(Search, "run", no_search)
        with pytest.raises(UserError, match=r"SP1301.* most is alive at node") as caught:
            within(graph, 1000, lanes)
    told = re.search(r"can meet is (\d+) bytes", caught.value.fix)
    assert told
    plan = within(graph, int(told[1]), lanes)
    assert plan.pools[0].arena == int(told[1]) and check(graph, plan, TARGET) == []


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30, deadline=None)
def test_no_decisions_need_less_than_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    rewriter = Rewriter(random_net(rng, rng.randrange(4, 16)))
    bound = search_of(rewriter.setting, rewriter.schedules).least
    drawn = [rewriter.draw(rng), *(rewriter.everything(way) for way in ("share", "own", "fresh", "move"))]
    made, schedule = rewriter.material, rewriter.schedules["train_step"]
    prints = footprints(rewriter.setting, schedule, made, dict.fromkeys(made.again, 0.0))
    for decisions in drawn:
        assert 0 < bound <= prints.of(steps(made, decisions)).peak


def test_what_needs_no_more_than_the_bound_is_a_plan() -> None:
    rewriter = Rewriter(small_net())
    least = Least(rewriter.setting, rewriter.schedules)
    plan = least.plan
    assert plan is not None and plan.pools[0].arena >= least.bytes
    assert check(rewriter.graph, plan, rewriter.target) == []


GRAPHS = [(chain(16, batch=256, width=64), 2), (random_net(random.Random(30), nodes=8), 4)]


@pytest.mark.parametrize(("graph", "lanes"), GRAPHS)
def test_somewhat_larger_budgets_are_told_where_plans_are_far_faster(graph: Graph, lanes: int) -> None:
    """The smallest plan may be one on fewer lanes, whose scratch is smaller. The first graph's smallest budget is told
    without a search, the other's after one."""
    with pytest.raises(UserError, match=r"SP1301.* most is alive at node") as caught:
        within(graph, 1000, lanes)
    told = re.search(r"can meet is (\d+) bytes .*; plans that take about (\d+)% .* need (\d+) bytes", caught.value.fix)
    assert told, caught.value.fix
    least, share, more = map(int, told.groups())
    assert least < more <= LITTLE * least and share <= 100 * FASTER
    slow, fast = within(graph, least, lanes), within(graph, round(1.02 * more), lanes)
    assert slow.pools[0].arena == least
    assert fast.program["train_step"].predicted_ns < FASTER * slow.program["train_step"].predicted_ns
