"""Blocks that fit each other become few pieces, on rectangles whose packing is known to exist."""

import pytest

from examples.pack_study import cut_rectangle, random_blocks
from planner.solve.liveness import Block
from planner.solve.offsets import THOROUGH, pack
from planner.solve.packing.joining import join
from planner.solve.packing.joints import Piece, Pieces
from planner.solve.packing.sections import instance
from planner.units import Bytes
from tests.solve.packings import validate


def offsets(blocks: list[Piece]) -> list[int] | None:
    """Of blocks that sizes tell to be one piece; None where they don't."""
    pieces = Pieces(blocks)
    pieces.join_sure()
    if len(pieces.live) > 1:
        return None
    return pieces.offsets({n: 0 for n in pieces.live}, len(blocks))


def test_a_block_takes_the_bytes_of_one_of_its_size_that_ends() -> None:
    assert offsets([Piece(0, 2, 5), Piece(2, 7, 5)]) == [0, 0]
    assert offsets([Piece(0, 2, 5), Piece(3, 7, 5)]) is None
    assert offsets([Piece(0, 2, 5), Piece(2, 7, 6)]) is None


def test_blocks_of_one_lifetime_are_stacked_when_their_sum_fits_a_neighbour() -> None:
    assert offsets([Piece(0, 2, 300), Piece(0, 2, 400), Piece(2, 3, 700)]) == [0, 300, 0]
    assert offsets([Piece(0, 2, 300), Piece(0, 2, 500), Piece(2, 3, 700)]) is None


@pytest.mark.parametrize("mirrored", [False, True])
def test_five_blocks_around_a_middle_are_a_rectangle(mirrored: bool) -> None:
    """Drawn in joints.py, or mirrored in time."""
    first, second, middle, other, last = (0, 4, 5), (4, 9, 2), (4, 7, 3), (0, 7, 6), (7, 9, 9)
    blocks = [Piece(lower, upper, size) for lower, upper, size in (first, second, middle, other, last)]
    if mirrored:
        blocks = [Piece(9 - b.upper, 9 - b.lower, b.size) for b in blocks]
    found = offsets(blocks)
    assert found is not None
    named = [Block(str(n), b.lower, b.upper, Bytes(b.size)) for n, b in enumerate(blocks)]
    validate(named, {str(n): at for n, at in enumerate(found)}, 11)


def test_parts_come_back_and_are_not_joined_where_that_is_to_be_avoided() -> None:
    pieces = Pieces([Piece(0, 2, 5), Piece(2, 7, 5)])
    pieces.join_sure()
    assert pieces.live == {2}
    assert pieces.take_apart(2) == [0, 1]
    pieces.avoided.add((0, 1))
    pieces.join_sure()
    assert pieces.live == {0, 1}


@pytest.mark.parametrize("seed", range(3))
def test_a_rectangle_becomes_few_pieces_and_is_packed_without_waste(seed: int) -> None:
    blocks = cut_rectangle(2_000, 4_000, 2**20, seed)
    pieces = join(instance(blocks, 1), 10**7)
    assert pieces is not None and len(pieces.live) < 100
    packing = pack(blocks, 1, effort=THOROUGH)
    assert packing.height == packing.lower_bound == 2**20
    validate(blocks, packing.offsets, packing.height)


def test_joints_are_right_wherever_blocks_end_up() -> None:
    """Pieces that are packed anyhow make a packing of their blocks, wrong guesses and all."""
    blocks = cut_rectangle(300, 60, 1_000, 5)
    problem = instance(blocks, 1)
    pieces = join(problem, 10**7)
    assert pieces is not None
    top, at = 0, {}
    for number in pieces.live:  # one above the other, whenever they live
        at[number] = top
        top += pieces.all[number].size
    found = dict(zip(problem.ids, pieces.offsets(at, problem.blocks), strict=True))
    scaled = {i: offset * problem.unit for i, offset in found.items()}
    validate(blocks, scaled, max(scaled[b.id] + b.size for b in blocks))


def test_blocks_that_leave_waste_are_left_alone() -> None:
    assert join(instance(random_blocks(300, "uniform", "uniform", 1), 1), 10**7) is None
