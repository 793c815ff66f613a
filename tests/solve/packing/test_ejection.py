"""Repairing by ejection: valid packings, never higher, the same every time, and lower where building is not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from examples.pack_study import random_blocks
from planner.solve.liveness import Block
from planner.solve.packing.ejection import lower_by_ejection
from planner.solve.packing.sections import Instance, height, instance
from planner.solve.packing.valleys import PRIORITIES, fill_valleys
from planner.units import Bytes
from tests.solve.packings import validate


def assert_valid(problem: Instance, offsets: list[int]) -> None:
    units = [
        Block(i, a, b, Bytes(s))
        for i, a, b, s in zip(problem.ids, problem.lower, problem.upper, problem.size, strict=True)
    ]
    validate(units, dict(zip(problem.ids, offsets, strict=True)), height(problem, offsets))


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(1, 9)), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(SPANS, st.integers(0, 20_000))
def test_valid_and_never_higher(spans: list[tuple[int, int, int]], limit: int) -> None:
    problem = instance([Block(f"b{i}", a, a + n, Bytes(s)) for i, (a, n, s) in enumerate(spans)], 1)
    stacked = [sum(problem.size[:b]) for b in range(problem.blocks)]
    offsets, work = lower_by_ejection(problem, stacked, problem.load, limit)
    assert_valid(problem, offsets)
    assert height(problem, offsets) <= height(problem, stacked)
    assert work == 0 or height(problem, stacked) > problem.load
    assert (offsets, work) == lower_by_ejection(problem, stacked, problem.load, limit)


def test_it_packs_lower_than_valley_filling() -> None:
    """Over six instances together: what is above the bound shrinks by a third at least."""
    before = after = 0.0
    for seed in (1, 2, 3):
        for sizes in ("uniform", "logarithmic"):
            problem = instance(random_blocks(400, "uniform", sizes, seed), 1)
            built = min((fill_valleys(problem, p) for p in PRIORITIES), key=lambda offsets: height(problem, offsets))
            offsets, work = lower_by_ejection(problem, built, problem.load, 6_000_000)
            assert_valid(problem, offsets)
            assert work < 7_000_000
            before += height(problem, built) / problem.load - 1
            after += height(problem, offsets) / problem.load - 1
    assert after < 0.67 * before


def test_it_stops_at_the_goal() -> None:
    problem = instance(random_blocks(200, "uniform", "uniform", 1), 1)
    built = fill_valleys(problem, "area")
    assert lower_by_ejection(problem, built, height(problem, built), 1_000_000) == (built, 0)
    goal = height(problem, built) - 10
    offsets, work = lower_by_ejection(problem, built, goal, 20_000_000)
    assert height(problem, offsets) <= goal and work < 20_000_000
