"""Who lies where, and whether a value is written completely, byte by byte."""

import random
from itertools import pairwise

import numpy as np
import pytest

from planner.plan.check_races import _covered, _Occupants
from planner.plan.check_touches import Tensor, Touches

END = 40
WIDTH, LINES = 4, 3
Written = tuple[int, int, int, int, int]
"""lo, hi, width, first and last column; width 0: contiguous."""


def rectangle(top: int, bottom: int, left: int, right: int) -> Written:
    """As check_touches has it: whole lines, or parts of one, are contiguous."""
    hull = (top * WIDTH + left, (bottom - 1) * WIDTH + right)
    return (*hull, 0, 0, 0) if (left, right) == (0, WIDTH) or bottom - top == 1 else (*hull, WIDTH, left, right)


def of_one_tensor(written: list[Written], read: list[Written]) -> Touches:
    lo, hi, width, left, right = np.array([*written, *read], np.int64).reshape(-1, 5).T
    write, nothing = np.arange(len(lo)) < len(written), np.zeros(len(lo), np.int64)
    return Touches(
        tensors=(Tensor(value="y", bytes=WIDTH * LINES),),
        start=np.array([0, len(lo)]),
        slice=nothing,
        tensor=nothing,
        write=write,
        lo=lo,
        hi=hi,
        width=width,
        col_lo=left,
        col_hi=right,
        step=nothing,
        source=nothing,
    )


@pytest.mark.parametrize("seed", range(200))
def test_only_what_is_written_byte_by_byte_is_covered(seed: int) -> None:
    choose = random.Random(seed)
    written, bytes_ = [], np.zeros((LINES, WIDTH), bool)
    for _ in range(choose.randint(0, 7)):
        top, left = choose.randrange(LINES), choose.randrange(WIDTH)
        bottom, right = choose.randint(top + 1, LINES), choose.randint(left + 1, WIDTH)
        written.append(rectangle(top, bottom, left, right))
        bytes_[top:bottom, left:right] = True
    everything = rectangle(0, LINES, 0, WIDTH)
    if _covered(of_one_tensor(written, [everything]), 0):
        assert bytes_.all()


@pytest.mark.parametrize("cuts", [[0, 4], [0, 1, 4], [0, 2, 3, 4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("middle", [1, 2, 3])
def test_columns_that_fill_their_lines_are_covered(cuts: list[int], middle: int) -> None:
    """But none of them may be missing."""
    parts = [rectangle(*rows, *columns) for rows in ((0, middle), (middle, LINES)) for columns in pairwise(cuts)
             if rows[0] < rows[1]]  # fmt: skip
    assert _covered(of_one_tensor(parts, []), 0)
    for missing in range(len(parts)):
        assert not _covered(of_one_tensor(parts[:missing] + parts[missing + 1 :], [parts[missing]]), 0)


@pytest.mark.parametrize("seed", range(60))
def test_occupants_of_ranges_are_those_of_their_bytes(seed: int) -> None:
    choose = random.Random(seed)
    held = _Occupants()
    model: list[tuple[int, ...]] = [()] * END
    for newcomer in range(25):
        lo = choose.randrange(END)
        hi = choose.randint(lo + 1, END)
        meeting = held.meeting(lo, hi)
        assert len(meeting) == len(set(meeting)) and set(meeting) == {t for who in model[lo:hi] for t in who}
        kept = {t: choose.random() < 0.5 for t in meeting}
        held.replace(lo, hi, newcomer, kept)
        model[lo:hi] = [(*(t for t in who if kept[t]), newcomer) for who in model[lo:hi]]
        found: list[tuple[int, ...]] = [()] * END
        for start, end, who in zip(held.starts, held.ends, held.who, strict=True):
            assert start < end
            found[start:end] = [who] * (end - start)
        assert found == model
        assert all(end <= start for end, start in zip(held.ends, held.starts[1:], strict=False))
        assert all(a < b for a, b in pairwise(held.starts))
