"""What is left out of all combinations of decisions is beaten by what is not, and what they have at least they have."""

import itertools
import random

import numpy as np
import pytest

from planner.graph.model import Graph
from planner.solve.memory.enumeration import unbeaten
from planner.solve.memory.frontier import frontier
from planner.solve.memory.quick import WAYS, Glance, Quick
from planner.solve.memory.steps import Decision
from planner.zoo import build
from tests.graphs import random_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import one_pool

MOST = 3000


def pareto(seen: list[tuple[dict[str, Decision], Glance]]) -> list[tuple[float, int]]:
    """From the fastest to the smallest, by ns and bytes."""
    best: list[tuple[float, int]] = []
    for ns, peak in sorted((glance.extra_ns, glance.peak) for _, glance in seen if not glance.hopeless):
        if not best or peak < best[-1][1]:
            best.append((ns, peak))
    return best


@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize(
    "graph", [random_net(random.Random(seed), nodes=3) for seed in (1, 2, 5)] + [build("dcgan", 2)]
)
def test_nothing_better_is_left_out(graph: Graph, pools: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = (one_pool if pools == 1 else Rewriter)(graph)
    monkeypatch.setattr("planner.solve.memory.frontier.Search.run", lambda self, *given: [self._state({})])
    found = frontier(rewriter.setting, rewriter.schedules)
    quick = Quick(found.prints, found.material, found.again_ns)
    # A few values at random may be dropped, the others are kept.
    rng = random.Random(pools)
    ways: list[tuple[Decision, ...]] = [("keep",)] * len(quick.values)
    for value in rng.sample(range(len(ways)), len(ways)):
        given = ("keep", *found.material.ways(quick.values[value], pools == 2))
        if len(given) * np.prod([len(w) for w in ways]) <= MOST:
            ways[value] = given
    every = [dict(zip(quick.values, chosen, strict=True)) for chosen in itertools.product(*ways)]
    assert len(every) > 10
    seen = [(decisions, quick.of(decisions)) for decisions in every]
    peaks, times = quick.at_least(np.array([[WAYS[way] for way in each.values()] for each in every], np.uint8))
    for (_, glance), peak, ns in zip(seen, peaks, times, strict=True):
        assert glance.hopeless or (peak <= glance.peak and ns <= glance.extra_ns)
    looked = unbeaten(ways, quick)
    assert pareto(looked) == pareto(seen)
    several = any(place.forward for place in quick._places)  # losses: nothing is known of them without a walk
    assert len(looked) == len(every) if several else len(looked) < len(every) / 2
    order = [every.index(decisions) for decisions, _ in looked]
    assert order == sorted(order)
