"""Packing: never overlaps, never below the lower bound, optimal where brute force can tell, the same every time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solve.liveness import Block
from planner.solve.offsets import Effort, most_alive, pack
from planner.units import Bytes
from tests.solve.packings import load, smallest_height, validate

SPANS = st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(0, 5000))


def blocks_of(spans: list[tuple[int, int, int]]) -> list[Block]:
    return [Block(f"b{i}", lo, lo + length, Bytes(size)) for i, (lo, length, size) in enumerate(spans)]


BLOCKS = st.lists(SPANS, max_size=30).map(blocks_of)


@given(BLOCKS, st.sampled_from([1, 64, 256]))
def test_packings_are_valid_and_not_below_the_bound(blocks: list[Block], alignment: int) -> None:
    packing = pack(blocks, alignment)
    validate(blocks, packing.offsets, packing.height, alignment)
    assert packing.lower_bound == load(blocks, alignment) == most_alive(blocks, alignment)
    assert packing.lower_bound <= packing.proven <= packing.height


@settings(max_examples=30)
@given(BLOCKS)
def test_order_of_the_input_does_not_matter(blocks: list[Block]) -> None:
    assert pack(blocks) == pack(blocks[::-1])


def test_example_by_hand() -> None:
    # a and b meet, b and c meet, a and c do not: c takes a's place.
    #   a [0,2) 128 bytes at 0, b [1,3) 64 bytes at 128, c [2,4) 128 bytes at 0: height 192 = what is alive at 1.
    packing = pack([Block("a", 0, 2, Bytes(128)), Block("b", 1, 3, Bytes(64)), Block("c", 2, 4, Bytes(128))])
    assert packing.height == packing.lower_bound == 192 and packing.optimal
    assert packing.offsets["a"] == packing.offsets["c"] != packing.offsets["b"]


SMALL = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 9)), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(SMALL)
def test_small_instances_are_proven_optimal(spans: list[tuple[int, int, int]]) -> None:
    blocks = blocks_of(spans)
    packing = pack(blocks, 1)
    assert packing.height == packing.proven == smallest_height(blocks)


@settings(max_examples=100, deadline=None)
@given(SMALL, st.integers(1, 40))
def test_a_capacity_is_met_where_possible(spans: list[tuple[int, int, int]], capacity: int) -> None:
    blocks = blocks_of(spans)
    packing = pack(blocks, 1, capacity=capacity)
    validate(blocks, packing.offsets, packing.height)
    possible = smallest_height(blocks) <= capacity
    assert (packing.height <= capacity) == possible == (packing.proven <= capacity)


@given(BLOCKS)
def test_without_search_packings_are_valid_too(blocks: list[Block]) -> None:
    packing = pack(blocks, effort=Effort(search=0, fit=0))
    validate(blocks, packing.offsets, packing.height, 64)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_nothing_to_pack(sizes: list[int]) -> None:
    blocks = [Block(f"b{i}", 0, 1, Bytes(size)) for i, size in enumerate(sizes)]
    packing = pack(blocks)
    assert packing == ({b.id: 0 for b in blocks}, 0, 0, 0)
