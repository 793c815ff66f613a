"""The published strategies are points of the space: `auto` is never slower within the memory that they need."""

import random

import pytest

from planner.solve.memory.frontier import exact_state
from planner.solve.memory.published import STRATEGIES, published
from planner.zoo import build
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import at, known, one_pool


@pytest.mark.parametrize("name", ["small", "random 1", "random 2", "digits_cnn"])
def test_auto_is_never_slower_at_equal_budget(name: str) -> None:
    kind, _, seed = name.partition(" ")
    graph = {"small": small_net, "random": lambda: random_net(random.Random(int(seed)), 20)}.get(
        kind, lambda: build(kind)
    )()
    rewriter = one_pool(graph)
    choice = known(rewriter)
    for decisions in published(graph, graph.program["train_step"], choice.material).values():
        state = exact_state(rewriter.setting, rewriter.schedules, choice, decisions)
        assert min(s.extra_ns for s in choice.states if s.peak <= state.peak) <= state.extra_ns
        theirs = rewriter.plan(decisions)
        assert theirs.program["train_step"].peak_bytes == state.peak
        ours = at(rewriter, theirs.pools[0].arena)
        assert ours.program["train_step"].predicted_ns <= theirs.program["train_step"].predicted_ns


def test_memory_centric_needs_least_and_runs_most_again() -> None:
    rewriter = Rewriter(random_net(random.Random(7), 20))
    made = rewriter.material
    found = published(rewriter.graph, rewriter.graph.program["train_step"], made)
    assert set(found) == set(STRATEGIES) and found["speed"]
    assert set(found["speed"].values()) == {"share"} and set(found["memory"].values()) == {"fresh"}
    assert found["speed"].keys() == found["memory"].keys() == found["cost"].keys()
    plans = {s: rewriter.plan(d).program["train_step"] for s, d in found.items()}
    assert len(plans["memory"].rewrite.recomputes) >= len(plans["speed"].rewrite.recomputes)
    assert plans["memory"].peak_bytes <= plans["speed"].peak_bytes
