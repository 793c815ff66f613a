"""Packings without waste: found where groups of equal sums show them, with free space too; else nothing is claimed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.pack_study import cut_rectangle, random_blocks
from planner.solve.liveness import Block
from planner.solve.offsets import pack
from planner.solve.packing.sections import height, instance
from planner.solve.packing.tight import pack_tight
from planner.solve.packing.turns import ways_to_take_turns
from planner.units import Bytes
from tests.solve.packings import validate

ENOUGH = 10**8


def found(blocks: list[Block], limit: int = ENOUGH) -> bool:
    """Whether there is a packing; it must be valid and waste nothing."""
    problem = instance(blocks, 1)
    offsets, work = pack_tight(problem, limit)
    assert work <= limit or offsets is None
    if offsets is None:
        return False
    assert height(problem, offsets) == problem.load
    units = [Block(b.id, b.lower, b.upper, Bytes(b.size // problem.unit)) for b in blocks]
    validate(units, dict(zip(problem.ids, offsets, strict=True)), problem.load)
    return True


def test_example_by_hand() -> None:
    # c takes b's byte at 1, beside a.
    assert found([Block("a", 0, 2, Bytes(2)), Block("b", 0, 1, Bytes(1)), Block("c", 1, 2, Bytes(1))])


@pytest.mark.parametrize("width", [200, 600, 3000])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_cut_rectangles_are_put_together_at_once(width: int, seed: int) -> None:
    assert found(cut_rectangle(400, width, 2**20, seed))


@pytest.mark.parametrize("seed", range(4))
def test_pieces_that_are_missing_leave_free_space(seed: int) -> None:
    blocks = cut_rectangle(200, 1000, 2**20, seed)
    blocks = sorted(blocks, key=lambda b: b.size * (b.upper - b.lower))[5:]
    assert found(blocks)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 60), st.integers(2, 60), st.integers(2, 2000), st.integers(0, 10**6))
def test_what_is_found_is_valid(pieces: int, width: int, height: int, seed: int) -> None:
    found(cut_rectangle(pieces, width, height, seed))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.sampled_from(["short", "uniform", "network"]), st.integers(0, 10**6))
def test_blocks_of_any_kind_are_packed_rightly_or_not_at_all(count: int, lifetimes: str, seed: int) -> None:
    found(random_blocks(count, lifetimes, "uniform", seed))


def test_it_stops_at_its_limit() -> None:
    assert not found(cut_rectangle(300, 600, 2**20, 1), limit=10_000)


def test_pack_proves_it() -> None:
    packing = pack(cut_rectangle(300, 200, 2**20, 1), 1)
    assert packing.height == packing.proven == 2**20


def test_groups_are_as_small_as_sums_allow() -> None:
    # 10 and 7 end, 4, 6 and 7 begin; by position.
    size = [10, 7, 4, 6, 7]
    ways = ways_to_take_turns([0, 1], [2, 3, 4], size).ways
    assert set(map(frozenset, ways)) == {frozenset({((1,), (4,)), ((0,), (2, 3))}), frozenset({((0, 1), (2, 3, 4))})}


def test_sums_that_leave_no_doubt() -> None:
    size = [1_000_003, 70_001, 400_000, 600_003, 70_001]
    ways = ways_to_take_turns([0, 1], [2, 3, 4], size)
    assert set(ways.ways[0]) == {((1,), (4,)), ((0,), (2, 3))} and ways.doubt < 1e-4
