"""Holding instances: never slower, never above the level, the same values for every reader."""

import random

import pytest

from planner.plan.check import check
from planner.solve.memory.holding import Holding, decided
from planner.solve.memory.steps import Decision, Step, steps
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import known


def drawn(rewriter: Rewriter, rng: random.Random) -> list[Step]:
    made = rewriter.material
    chosen: dict[str, Decision] = {v: rng.choice(("keep", *made.ways(v, True))) for v in made.values}
    return steps(made, chosen)


def test_with_all_memory_everything_stays_and_with_none_to_spare_nothing_grows() -> None:
    rewriter = Rewriter(small_net())
    made, exact = rewriter.material, known(rewriter).prints
    again = steps(made, rewriter.everything("fresh"))
    held, seen = Holding(exact, made).hold((again, exact.of(again)), 2**60)
    assert exact.of(again).extra_ns > 0 == seen.extra_ns
    assert all(exact.is_view(s.of) for s in held if s.kind == "recompute")
    tight = exact.of(again)
    _, seen = Holding(exact, made).hold((again, tight), tight.peak)
    assert seen.peak <= tight.peak and seen.extra_ns <= tight.extra_ns


@pytest.mark.parametrize("seed", range(6))
def test_what_is_held_is_a_plan_that_takes_no_longer(seed: int) -> None:
    rng = random.Random(seed)
    rewriter = Rewriter(random_net(rng, nodes=rng.randrange(4, 16)))
    made, exact = rewriter.material, known(rewriter).prints
    for room in (1.0, 1.05, 1.2):
        found = drawn(rewriter, rng)
        before = exact.of(found)
        level = int(before.peak * room)
        held, seen = Holding(exact, made).hold((found, before), level)
        assert seen.peak <= level and seen.extra_ns <= before.extra_ns
        decisions, between = decided(held, exact, made)
        same = exact.of(steps(made, decisions, between))
        assert (same.peak, same.extra_ns) == (seen.peak, pytest.approx(seen.extra_ns))
        plan = rewriter.plan(decisions, between, overlap=False)
        assert check(rewriter.graph, plan, rewriter.target) == []
        assert plan.program["train_step"].peak_bytes == seen.peak
