"""Packing: never overlaps, never below the lower bound, optimal where brute force can tell."""

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from planner.solve.liveness import Block
from planner.solve.offsets import most_alive, pack
from planner.units import Bytes, align

SPANS = st.tuples(st.integers(0, 20), st.integers(1, 12), st.integers(1, 5000))
BLOCKS = st.lists(SPANS, max_size=30).map(
    lambda spans: [Block(f"b{i}", lo, lo + length, Bytes(size)) for i, (lo, length, size) in enumerate(spans)]
)


@given(BLOCKS)
def test_blocks_alive_together_never_overlap(blocks: list[Block]) -> None:
    packing = pack(blocks)
    for i, a in enumerate(blocks):
        at = packing.offsets[a.id]
        assert at % 64 == 0
        assert at + a.size <= packing.height
        for b in blocks[:i]:
            together = a.lower < b.upper and b.lower < a.upper
            apart = at + a.size <= packing.offsets[b.id] or packing.offsets[b.id] + b.size <= at
            assert apart or not together


@given(BLOCKS)
def test_height_is_between_the_bound_and_the_sum(blocks: list[Block]) -> None:
    packing = pack(blocks)
    assert packing.lower_bound == most_alive(blocks)
    assert packing.lower_bound <= packing.height <= sum(align(b.size) for b in blocks)


@settings(max_examples=30)
@given(BLOCKS)
def test_order_of_the_input_does_not_matter(blocks: list[Block]) -> None:
    assert pack(blocks) == pack(blocks[::-1])


def test_example_by_hand() -> None:
    # a and b meet, b and c meet, a and c do not: c takes a's place.
    #   a [0,2) 128 bytes at 0, b [1,3) 64 bytes at 128, c [2,4) 128 bytes at 0: height 192 = what is alive at 1.
    packing = pack([Block("a", 0, 2, Bytes(128)), Block("b", 1, 3, Bytes(64)), Block("c", 2, 4, Bytes(128))])
    assert packing.height == packing.lower_bound == 192
    assert packing.offsets["a"] == packing.offsets["c"] != packing.offsets["b"]


@settings(max_examples=25, deadline=None)
@given(st.lists(SPANS, min_size=1, max_size=5))
def test_small_instances_are_close_to_the_best_of_all_orders(spans: list[tuple[int, int, int]]) -> None:
    """First fit over every order reaches an optimal packing; best fit may lose at most a quarter to it."""
    blocks = [Block(f"b{i}", lo, lo + length, Bytes(size)) for i, (lo, length, size) in enumerate(spans)]
    best = min(_first_fit(order) for order in permutations(blocks))
    assert pack(blocks).height <= 1.25 * best


def _first_fit(order: tuple[Block, ...]) -> int:
    placed: list[tuple[Block, int]] = []
    for block in order:
        spots = [0] + [at + align(other.size) for other, at in placed]
        at = min(s for s in spots if all(_fits(block, s, other, o) for other, o in placed))
        placed.append((block, at))
    return max(at + align(b.size) for b, at in placed)


def _fits(a: Block, at: int, b: Block, other: int) -> bool:
    apart = at + align(a.size) <= other or other + align(b.size) <= at
    return apart or not (a.lower < b.upper and b.lower < a.upper)
