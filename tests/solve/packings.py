"""Checks a packing by comparing every block with every other one; shares nothing with the solvers."""

from collections.abc import Mapping, Sequence
from itertools import permutations

from planner.solve.liveness import Block


def validate(blocks: Sequence[Block], offsets: Mapping[str, int], height: int, alignment: int = 1) -> None:
    """Every block has an aligned offset, ends below the height, and overlaps none that is alive with it."""
    assert set(offsets) == {b.id for b in blocks}
    tops = [0]
    for block in blocks:
        assert offsets[block.id] >= 0 and offsets[block.id] % alignment == 0, block
        tops.append(offsets[block.id] + rounded(block.size, alignment))
    assert max(tops) == height
    for index, a in enumerate(blocks):
        for b in blocks[:index]:
            if a.lower < b.upper and b.lower < a.upper:
                assert _apart(a, offsets[a.id], b, offsets[b.id]), (a, b)


def _apart(a: Block, at: int, b: Block, other: int) -> bool:
    return at + a.size <= other or other + b.size <= at


def load(blocks: Sequence[Block], alignment: int = 1) -> int:
    """Most bytes alive at any time, by looking at every time."""
    times = {b.lower for b in blocks}
    return max((sum(rounded(b.size, alignment) for b in blocks if b.lower <= t < b.upper) for t in times), default=0)


def smallest_height(blocks: Sequence[Block], alignment: int = 1) -> int:
    """Of all orders, each block as low as it can: some order gives an optimum. For up to seven blocks."""
    return min(_first_fit(order, alignment) for order in permutations(blocks))


def _first_fit(order: Sequence[Block], alignment: int) -> int:
    placed: list[tuple[Block, int]] = []
    for block in order:
        meets = [(b, at) for b, at in placed if b.lower < block.upper and block.lower < b.upper]
        spots = [0] + [at + rounded(b.size, alignment) for b, at in meets]
        fits = (s for s in spots if all(_apart(block, s, b, at) for b, at in meets))
        placed.append((block, min(fits)))
    return max((at + rounded(b.size, alignment) for b, at in placed), default=0)


def rounded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
