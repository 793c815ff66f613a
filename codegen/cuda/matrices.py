"""Copies that turn whole matrices, which a GPU does tile by tile."""

from collections.abc import Sequence
from typing import NamedTuple


class Matrices(NamedTuple):
    """Dense, one behind the other."""

    batch: int
    rows: int
    columns: int


def turned(shape: Sequence[int], strides: Sequence[int]) -> Matrices | None:
    """The matrices that a copy turns: its result is dense, of this shape, and reads what lies at these strides. None:
    it is another copy.

    >>> turned((8, 40, 17), (680, 1, 40))
    Matrices(batch=8, rows=17, columns=40)
    """
    walked = [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent > 1]
    batch, apart = walked.pop(0) if len(walked) == 3 else (1, 0)
    if len(walked) != 2:
        return None
    (columns, one), (rows, pitch) = walked
    whole = one == 1 and pitch == columns and (batch == 1 or apart == rows * columns)
    return Matrices(batch, rows, columns) if whole else None
