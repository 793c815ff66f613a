"""The search for overlapping accesses finds all and only those."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.plan import check_dependencies
from planner.plan.check_dependencies import _overlapping
from planner.plan.check_touches import Touches

ACCESSES = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 30), st.integers(1, 12)), min_size=1, max_size=40
)


def touches(rows: list[tuple[int, bool, int, int]]) -> Touches:
    rows = sorted(rows, key=lambda r: r[0])
    tensor, write, lo, size = (np.array(column) for column in zip(*rows, strict=True))
    nothing = np.zeros(len(rows), np.int64)
    start = np.searchsorted(tensor, np.arange(5))
    return Touches(
        tensors=(),
        start=start,
        slice=np.arange(len(rows)),
        tensor=tensor,
        write=write.astype(bool),
        lo=lo,
        hi=lo + size,
        width=nothing,
        col_lo=nothing,
        col_hi=nothing,
        step=nothing,
        source=nothing,
    )


@given(ACCESSES, st.sampled_from([1, 3, 1 << 20]))
def test_all_overlaps_are_found_once(rows: list[tuple[int, bool, int, int]], at_once: int) -> None:
    touched = touches(rows)
    before, check_dependencies.PAIRS_AT_ONCE = check_dependencies.PAIRS_AT_ONCE, at_once
    try:
        found = [pair for w, a in _overlapping(touched) for pair in zip(w.tolist(), a.tolist(), strict=True)]
    finally:
        check_dependencies.PAIRS_AT_ONCE = before
    expected = {
        (w, a)
        for w in range(len(rows))
        for a in range(len(rows))
        if touched.write[w]
        and touched.tensor[w] == touched.tensor[a]
        and touched.lo[w] < touched.hi[a]
        and touched.lo[a] < touched.hi[w]
    }
    assert len(found) == len(expected)
    assert set(found) == expected
