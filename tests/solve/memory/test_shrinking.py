"""Shrinking: within the level, the same values for every reader, and never worse than what is given."""

import random
from itertools import pairwise

from planner.plan.check import check
from planner.solve.memory.holding import Holding, decided
from planner.solve.memory.shrinking import Shrinking, down_and_up
from planner.solve.memory.steps import steps
from planner.zoo import build
from tests.graphs import random_losses, random_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import known, one_pool


def test_what_is_shrunk_fits_and_is_a_plan() -> None:
    reached = 0
    for seed in range(6):
        rng = random.Random(seed)
        rewriter = Rewriter(random_losses(rng) if seed % 2 else random_net(rng, nodes=10))
        made, choice = rewriter.material, known(rewriter)
        exact, states = choice.prints, choice.states
        for larger, smaller in list(pairwise(states))[:: max(1, len(states) // 4)]:
            listed = steps(made, larger.decisions, larger.held)
            found = Shrinking(exact, made).within((listed, exact.of(listed)), smaller.peak)
            if found is None:
                continue
            reached += 1
            decisions, held = decided(found[0], exact, made)
            plan = rewriter.plan(decisions, held, overlap=False)
            assert plan.program["train_step"].peak_bytes == found[1].peak <= smaller.peak
            assert check(rewriter.graph, plan, rewriter.target) == []
    assert reached > 3


def test_what_smaller_steps_miss_is_found_over_two_levels() -> None:
    """From level to level alone it ends at + 26 %."""
    choice = known(one_pool(build("dcgan_generator")))
    within = [s.extra_ns for s in choice.states if s.peak <= 0.6 * choice.states[0].peak]
    assert min(within) < 0.21 * choice.base_ns


def test_down_and_up_only_improves() -> None:
    rewriter = Rewriter(random_net(random.Random(8), nodes=16))
    made, choice = rewriter.material, known(rewriter)
    given = {s.peak: (listed := steps(made, s.decisions, s.held), choice.prints.of(listed)) for s in choice.states}
    for listed in down_and_up(given, Holding(choice.prints, made), choice.prints, made):
        better = choice.prints.of(listed)
        assert any(better.peak <= level and better.extra_ns < seen.extra_ns for level, (_, seen) in given.items())
