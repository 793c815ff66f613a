"""Full sections first: where the rest has room, and where every section counts."""

import random

from examples.pack_study import random_blocks
from planner.solve.liveness import Block
from planner.solve.packing.dense_first import dense_first
from planner.solve.packing.sections import Instance, height, instance
from planner.solve.packing.valleys import PRIORITIES, ranks
from planner.units import Bytes
from tests.solve.packings import validate


def packed(problem: Instance, goal: int, work_limit: int) -> list[int] | None:
    offsets, work = dense_first(problem, goal, [ranks(problem, p) for p in PRIORITIES], work_limit)
    assert work > 0
    return offsets


def full_in_the_middle(seed: int) -> list[Block]:
    """A rectangle cut in two kinds of pieces that just fill it, and half as much before and behind."""
    rng = random.Random(seed)
    middle, at = [], 0
    while at < 1_000:
        size = min(rng.randint(30, 90), 1_000 - at)
        turn = rng.randint(45, 55)
        middle += [(rng.randint(20, 40), turn, size), (turn, rng.randint(60, 80), size)]
        at += size
    around = [(a, a + rng.randint(3, 9), rng.randint(20, 60)) for a in range(0, 20) for _ in range(2)]
    around += [(100 - upper, 100 - lower, size) for lower, upper, size in around]
    return [Block(f"b{n}", a, b, Bytes(size)) for n, (a, b, size) in enumerate(middle + around)]


def test_full_sections_between_roomy_ones_are_packed_without_waste() -> None:
    for seed in range(5):
        blocks = full_in_the_middle(seed)
        problem = instance(blocks, 1)
        offsets = packed(problem, problem.load, 20_000_000)
        assert offsets is not None and height(problem, offsets) == problem.load
        named = {i: at * problem.unit for i, at in zip(problem.ids, offsets, strict=True)}
        validate(blocks, named, problem.load * problem.unit)


def test_long_and_short_lifetimes_of_all_sizes_reach_the_lower_bound() -> None:
    """Neither repairs of greedy packings nor exact search of all blocks at once do here."""
    problem = instance(random_blocks(500, "uniform", "uniform", 1), 1)
    offsets = packed(problem, problem.load, 50_000_000)
    assert offsets is not None and height(problem, offsets) == problem.load


def test_a_height_below_the_load_is_not_reached() -> None:
    problem = instance(full_in_the_middle(1), 1)
    assert packed(problem, problem.load - 1, 2_000_000) is None
