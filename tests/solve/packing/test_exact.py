"""Exact search: finds what brute force finds, proves what brute force proves, stops at its limit."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.pack_study import cut_rectangle
from planner.solve.liveness import Block
from planner.solve.offsets import THOROUGH, pack
from planner.solve.packing.exact import Verdict, pack_below
from planner.solve.packing.sections import Instance, instance
from planner.solve.packing.valleys import PRIORITIES, ranks
from planner.units import Bytes
from tests.solve.packings import smallest_height, validate

SPANS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6)


def blocks_of(spans: list[tuple[int, int, int]]) -> list[Block]:
    return [Block(f"b{i}", lo, lo + length, Bytes(size)) for i, (lo, length, size) in enumerate(spans)]


def found(problem: Instance, height: int, preference: list[int] | None = None, limit: int = 10**7) -> Verdict:
    """The verdict; a packing that it comes with must be valid and fit."""
    result = pack_below(problem, height, preference or list(range(problem.blocks)), limit)
    if result.verdict is Verdict.FOUND:
        blocks = [
            Block(i, a, b, Bytes(s))
            for i, a, b, s in zip(problem.ids, problem.lower, problem.upper, problem.size, strict=True)
        ]
        offsets = dict(zip(problem.ids, result.offsets, strict=True))
        top = max(offsets[b.id] + b.size for b in blocks)
        validate(blocks, offsets, top)
        assert top <= height
    return result.verdict


@settings(max_examples=200, deadline=None)
@given(SPANS, st.sampled_from(PRIORITIES))
def test_the_verdict_is_that_of_brute_force(spans: list[tuple[int, int, int]], priority: str) -> None:
    problem = instance(blocks_of(spans), 1)
    best = smallest_height(blocks_of(spans)) // problem.unit
    assert found(problem, best, ranks(problem, priority)) is Verdict.FOUND
    assert found(problem, best - 1, ranks(problem, priority)) is Verdict.IMPOSSIBLE


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 40))
def test_a_cut_rectangle_is_put_together_again(seed: int, pieces: int) -> None:
    blocks = cut_rectangle(pieces, 40, 60, seed)
    packing = pack(blocks, 1, effort=THOROUGH._replace(search=5_000_000))
    validate(blocks, packing.offsets, packing.height)
    assert packing.lower_bound == 60
    if pieces <= 12:
        assert packing.height == 60


def test_it_goes_deeper_than_python_recurses() -> None:
    # 1,500 blocks, each alive with the next: heights 1 and 2 in turn.
    blocks = [Block(f"b{i}", i, i + 2, Bytes(1 + i % 2)) for i in range(1500)]
    assert found(instance(blocks, 1), 3) is Verdict.FOUND
    assert found(instance(blocks, 1), 2) is Verdict.IMPOSSIBLE


def test_it_stops_at_its_limit_and_counts_the_same_work_each_time() -> None:
    shuffled = random.Random(1).sample(range(100), 100)
    blocks = cut_rectangle(100, 300, 5000, 2)
    problem = instance(blocks, 1)
    results = [pack_below(problem, 5000, shuffled, 100_000) for _ in range(2)]
    assert results[0] == results[1] and results[0].verdict is Verdict.GAVE_UP
    assert 100_000 < results[0].work < 120_000


@pytest.mark.parametrize("height", [0, -5])
def test_no_room_at_all(height: int) -> None:
    assert found(instance(blocks_of([(0, 1, 1)]), 1), height) is Verdict.IMPOSSIBLE
