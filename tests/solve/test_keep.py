"""Values that stay until their program ends."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, TensorType
from planner.graph.optimizer import Optimizer
from planner.plan.check import check
from planner.plan.diff import diff
from planner.plan.diff_text import render
from planner.plan.explain import explain
from planner.plan.lifetimes import blocks, owner
from planner.plan.schema import Plan
from planner.plan.text import plan_text
from planner.solve.keep import kept_values
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.text import load_target
from tests.graphs import NORMAL, random_net, small_net


def planned(graph: Graph, *keep: str, lanes: int = 2) -> Plan:
    target = load_target("cpu16")
    options = PlanOptions(policy="sequential", lanes=lanes, keep=keep)
    return make_plan(graph, target, modelled_costs(graph, target, lanes=lanes), options)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 4))
def test_what_is_kept_survives_in_a_safe_plan(seed: int, lanes: int) -> None:
    rng = random.Random(seed)
    graph = random_net(rng)
    made = [v for p in graph.programs for n in p.nodes for v in n.outputs]
    keep = tuple(rng.sample(made, rng.randint(1, len(made))))
    plan = planned(graph, *keep, lanes=lanes)
    assert set(plan.keep) == set(keep)
    assert check(graph, plan, load_target("cpu16")) == []
    for program in graph.programs:
        here = {owner(plan, v) for n in program.nodes for v in n.outputs if v in keep}
        last = len(plan.program[program.name].nodes) - 1
        assert all(b.last == last for b in blocks(graph, plan, program.name) if b.id in here)


def test_a_plan_that_does_not_keep_what_it_says_is_refused() -> None:
    graph = small_net()
    plan = planned(graph)
    lying = plan.model_copy(update={"keep": tuple(v for n in graph.program["train_step"].nodes for v in n.outputs)})
    assert "SP1424" in {f.code for f in check(graph, lying, load_target("cpu16"))}
    unknown = plan.model_copy(update={"keep": ("nothing",)})
    assert "SP1417" in {f.code for f in check(graph, unknown, load_target("cpu16"))}


def test_patterns_choose_values_in_the_order_of_the_graph() -> None:
    graph = small_net()
    assert kept_values(graph, ("conv2.back*", "bn1.y")) == (
        "bn1.y",
        "conv2.backward_weights.dw",
        "conv2.backward_data.dx",
    )
    assert kept_values(graph, ()) == ()


def test_what_cannot_be_kept_is_told() -> None:
    with pytest.raises(UserError, match=r"SP1304.*computes a value 'typo'"):
        planned(small_net(), "typo")
    b = GraphBuilder("views")
    weight = b.parameter("w", (4, 2), NORMAL)
    x = b.input("x", TensorType(shape=(3, 8)))
    turned = layers.reshape(b, weight, (8,), name="flat_w")
    y = layers.mul(b, x, turned, name="scaled")
    graph = b.finish(layers.mean(b, layers.mean(b, y, (0,), name="m0"), (0,), name="m1"), y, Optimizer())
    with pytest.raises(UserError, match=r"SP1304.*view of w"):
        kept_values(graph, (turned,))
    assert turned not in kept_values(graph, ("*",))


def test_keeping_costs_memory_and_is_part_of_the_plan() -> None:
    graph = small_net()
    plain, kept = planned(graph), planned(graph, "*")
    assert kept.pools[0].arena > plain.pools[0].arena
    assert '"keep"' not in plan_text(plain) and '"keep"' in plan_text(kept)
    assert "kept values" in render(diff(plain, kept))
    assert "--keep" in explain("conv2.y", graph, planned(graph, "conv2.y")).text()
