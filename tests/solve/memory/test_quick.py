"""Quick estimates agree with footprints.py to the byte, with several losses as well."""

import random

import pytest

from planner.graph.model import Graph
from planner.solve.memory import quick
from planner.solve.memory.frontier import frontier
from planner.solve.memory.quick import Quick
from planner.solve.memory.steps import steps
from planner.zoo import build
from tests.graphs import random_net, small_net
from tests.rewrites import Rewriter
from tests.solve.test_budget import one_pool


def graph_of(name: str) -> Graph:
    """dcgan: forward nodes of the second and third loss follow backward nodes of the first."""
    return {"small": small_net, "random": lambda: random_net(random.Random(3))}.get(
        name, lambda: build(name, batch=2)
    )()


@pytest.mark.parametrize("name", ["small", "random", "dcgan"])
@pytest.mark.parametrize("pools", [1, 2])
def test_estimates_are_exact(name: str, pools: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = (one_pool if pools == 1 else Rewriter)(graph_of(name))
    monkeypatch.setattr("planner.solve.memory.frontier.Search.run", lambda self, *given: [self._state({})])
    found = frontier(rewriter.setting, rewriter.schedules)
    made, prints, rng = found.material, found.prints, random.Random(1)
    estimate = Quick(prints, made, found.again_ns)
    before = estimate.of({})
    for _ in range(20):
        dropped = rng.random()
        decisions = {
            v: rng.choice(made.ways(v, pools == 2)) if rng.random() < dropped and made.ways(v, pools == 2) else "keep"
            for v in made.values
        }
        exact, seen = prints.of(steps(made, decisions)), estimate.of(decisions)
        assert seen.peak == exact.peak
        assert seen.again_ns == pytest.approx(exact.again_ns)
        assert seen.walk
        resumed = Quick(prints, made, found.again_ns).look(seen.walk.way, before)
        assert (resumed.extra_ns, resumed.alive.tolist()) == (seen.extra_ns, seen.alive.tolist())
        nearby = {v: "keep" if rng.random() < 0.1 else d for v, d in decisions.items()}
        resumed = estimate.of(nearby, seen)
        anew = Quick(prints, made, found.again_ns).of(nearby)
        assert (resumed.extra_ns, resumed.alive.tolist()) == (anew.extra_ns, anew.alive.tolist())
        before = resumed


def test_what_runs_again_too_often_is_not_looked_at_further(monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter = one_pool(small_net())
    found = frontier(rewriter.setting, rewriter.schedules)
    monkeypatch.setattr(quick, "MOST_AGAIN", 3)
    estimate = Quick(found.prints, found.material, found.again_ns)
    assert estimate.of({v: "fresh" for v in found.material.producer if v in found.material.values}).hopeless
    assert not estimate.of({}).hopeless


@pytest.mark.parametrize(("name", "some"), [("lstm", True), ("random", False), ("dcgan", False)])
def test_keeping_what_comes_anyway_spares_nothing(name: str, some: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cell of an LSTM makes its next state and its gates at once."""
    rewriter = Rewriter(graph_of(name))
    monkeypatch.setattr("planner.solve.memory.frontier.Search.run", lambda self, *given: [self._state({})])
    found = frontier(rewriter.setting, rewriter.schedules)
    made, rng, told = found.material, random.Random(2), 0
    estimate = Quick(found.prints, made, found.again_ns)
    for share in (0.3, 0.9, 1.0):
        decisions = {v: rng.choice(ways) for v in made.values if (ways := made.ways(v, False)) and rng.random() < share}
        seen = estimate.of(decisions)
        for value in decisions:
            if estimate.comes_anyway(value, seen):
                told += 1
                kept = estimate.of({v: d for v, d in decisions.items() if v != value}, seen)
                assert (kept.extra_ns, kept.again_ns) == (seen.extra_ns, seen.again_ns)
    assert told > 0 or not some
