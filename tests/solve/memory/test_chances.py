"""What is told to gain nothing gains nothing when it is walked."""

import random

import pytest

from planner.graph.model import Graph
from planner.solve.memory.chances import Chances
from planner.solve.memory.frontier import frontier
from planner.solve.memory.quick import Quick
from planner.zoo import build
from tests.graphs import random_losses, random_net
from tests.rewrites import Rewriter


def graph_of(name: str, seed: int) -> Graph:
    """lstm: a cell makes its next state and its gates at once. losses: forward nodes behind backward ones."""
    if name == "lstm":
        return build("lstm", batch=2)
    return (random_net if name == "net" else random_losses)(random.Random(seed))


@pytest.mark.parametrize(("name", "seed"), [("lstm", 0), ("losses", 1), *(("net", seed) for seed in range(6))])
def test_nothing_is_gained_where_that_is_told(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rewriter, rng, told = Rewriter(graph_of(name, seed)), random.Random(seed), 0
    monkeypatch.setattr("planner.solve.memory.frontier.Search.run", lambda self, *given: [self._state({})])
    found = frontier(rewriter.setting, rewriter.schedules)
    made, estimate = found.material, Quick(found.prints, found.material, found.again_ns)
    for share in (0.0, 0.2, 0.5, 0.8, 1.0):
        ways = {v: made.ways(v, True) for v in made.values}
        decisions = {v: rng.choice(w) for v, w in ways.items() if w and rng.random() < share}
        now = estimate.of(decisions)
        level = int(now.peak * rng.choice((0.999, 0.96, 0.7)))
        chances = Chances(estimate, now, level)
        tried = [(v, way) for v in made.values for way in ways[v] if way != decisions.get(v)]
        for value, way in rng.sample(tried, min(len(tried), 150)):
            before = decisions.get(value, "keep")
            if before != "keep" and (before, way) not in (("share", "own"), ("share", "fresh"), ("own", "fresh")):
                continue
            if chances.none(value, way):
                told += 1
                after = estimate.of({**decisions, value: way}, now)
                assert after.peak > now.peak or after.above(level) >= now.above(level)
    assert told > 0 or name == "losses"
