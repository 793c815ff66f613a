"""Filling valleys with chains: valid, deterministic, and the best chain where all can be tried."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.pack_study import random_blocks
from planner.solve.liveness import Block
from planner.solve.packing.chains import TASTES, Taste, _best_chain, fill_chains
from planner.solve.packing.sections import height, instance, loads
from planner.solve.packing.valleys import PRIORITIES, Skyline, fill_valleys
from planner.units import Bytes
from tests.solve.packings import validate

SPANS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=8)


def blocks_of(spans: list[tuple[int, int, int]]) -> list[Block]:
    return [Block(f"b{i}", a, a + n, Bytes(size)) for i, (a, n, size) in enumerate(spans)]


@settings(deadline=None)
@given(SPANS, st.sampled_from(TASTES))
def test_packings_are_valid(spans: list[tuple[int, int, int]], taste: Taste) -> None:
    problem = instance(blocks_of(spans), 1)
    offsets, work = fill_chains(problem, taste)
    units = [
        Block(i, a, b, Bytes(s))
        for i, a, b, s in zip(problem.ids, problem.lower, problem.upper, problem.size, strict=True)
    ]
    validate(units, dict(zip(problem.ids, offsets, strict=True)), height(problem, offsets))
    assert work > 0 and fill_chains(problem, taste) == (offsets, work)


@given(SPANS, st.sampled_from(TASTES))
def test_no_chain_is_worth_more(spans: list[tuple[int, int, int]], taste: Taste) -> None:
    problem = instance(blocks_of(spans), 1)
    to_come = loads(problem)
    weight = np.exp(np.maximum((to_come - to_come.max()) * taste.urgent / problem.load, -20.0))

    def worth(blocks: tuple[int, ...]) -> float:
        return sum(
            float(weight[problem.lower[b] : problem.upper[b]].sum()) * float(problem.size[b]) ** taste.tall
            for b in blocks
        )

    def apart(blocks: tuple[int, ...]) -> bool:
        return all(
            problem.upper[a] <= problem.lower[b] or problem.upper[b] <= problem.lower[a]
            for a, b in combinations(blocks, 2)
        )

    everything = range(problem.blocks)
    best = max(worth(c) for n in everything for c in combinations(everything, n + 1) if apart(c))
    skyline, end = Skyline(problem), problem.count
    chain = tuple(_best_chain(skyline, skyline.fitting(0, end), 0, end, taste, skyline.size**taste.tall))
    assert apart(chain) and worth(chain) == pytest.approx(best)


def test_many_mixed_blocks_pack_lower_than_block_by_block() -> None:
    problem = instance(random_blocks(3000, "mixed", "uniform", 1), 1)
    chains = min(height(problem, fill_chains(problem, taste)[0]) for taste in TASTES)
    assert chains < min(height(problem, fill_valleys(problem, priority)) for priority in PRIORITIES)
