"""The bound on recomputation is below everything that fits the budget, and not trivial."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solve.memory.budget_bound import Relaxation
from planner.solve.memory.footprints import Footprints
from planner.solve.memory.frontier import frontier
from planner.solve.memory.steps import steps
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import one_pool


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
