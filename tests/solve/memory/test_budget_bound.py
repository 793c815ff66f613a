"""The bound on recomputation is below everything that fits the budget, and not trivial."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph.builder import GraphBuilder
from planner.graph.model import TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.reduce import ReduceAttrs
from planner.plan.check import check
from planner.solve.memory.budget_bound import Relaxation
from planner.solve.memory.footprints import Footprints
from planner.solve.memory.frontier import frontier
from planner.solve.memory.steps import steps
from tests.graphs import NORMAL, random_net, small_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import at, one_pool, smallest


def bound(rewriter: Rewriter, again_ns: dict[str, float], budget: int) -> float | None:
    program = rewriter.graph.program["train_step"]
    schedule = rewriter.schedules["train_step"]
    found = Relaxation(rewriter.graph, program, schedule, rewriter.material, again_ns).solve(budget)
    return found.again_ns if found else None


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_nothing_that_fits_takes_less(seed: int) -> None:
    rng = random.Random(seed)
    rewriter = one_pool(random_net(rng, nodes=rng.randrange(3, 16)))
    made = rewriter.material
    again_ns = {n: float(rng.randrange(1, 1000)) for n in made.again}
    program, schedule = rewriter.graph.program["train_step"], rewriter.schedules["train_step"]
    prints = Footprints(rewriter.graph, program, schedule, made, again_ns)
    for _ in range(4):
        decisions = {v: rng.choice(("keep", *made.ways(v, False))) for v in made.values}
        found = prints.of(steps(made, decisions))
        least = bound(rewriter, again_ns, found.peak)
        assert least is not None and least <= found.again_ns * (1 + 1e-6) + 1e-3


def test_a_tight_budget_has_a_bound_and_an_impossible_one_none() -> None:
    rewriter = one_pool(small_net())
    found = frontier(rewriter.setting, rewriter.schedules)
    least = bound(rewriter, dict(found.again_ns), found.states[-1].peak)
    assert least is not None and 0 < least <= found.states[-1].extra_ns
    assert bound(rewriter, dict(found.again_ns), found.states[0].peak) == 0
    assert bound(rewriter, dict(found.again_ns), 1000) is None


@pytest.mark.parametrize("pools", [1, 2])
def test_nothing_to_decide_where_the_backward_pass_reads_nothing_of_the_forward_pass(pools: int) -> None:
    """A step that is linear in its parameters, and needs most memory in its forward pass."""
    b = GraphBuilder("linear")
    w, x = b.parameter("w", (6, 40), NORMAL), b.input("x", TensorType(shape=(40, 30)))
    (y,) = b.op("matmul", [w, x], name="product")
    (loss,) = b.op("reduce_sum", [y], ReduceAttrs(axes=(0, 1)), name="loss")
    for number in range(3):
        (more,) = b.op("matmul", [x, b.input(f"x{number}", TensorType(shape=(30, 50)))], name=f"beside{number}")
        (more,) = b.op("reduce_sum", [more], ReduceAttrs(axes=(0, 1)), name=f"sum{number}")
        (loss,) = b.op("add", [loss, more], name=f"loss{number}")
    graph = b.finish(loss, y, Optimizer())
    rewriter = one_pool(graph) if pools == 1 else Rewriter(graph)
    least = smallest(rewriter)
    assert check(graph, at(rewriter, least), rewriter.setting.target) == []
    assert bound(rewriter, {}, least) == 0 and bound(rewriter, {}, 1000) is None
