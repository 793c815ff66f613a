"""Entries in the order of their targets: equal ones keep theirs, and those outside of the rows are at the ends."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from build import compile_library

from planner.ops.entries import SortEntries, SortEntriesAttrs


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("entries.cpp"))


@pytest.mark.parametrize(("entries", "sources", "targets"), [(1, 1, 1), (300, 23, 31), (40, 5, 2000)])
@pytest.mark.parametrize("outside", [False, True])
def test_sorted_entries(lib, entries, sources, targets, outside):
    rng = np.random.default_rng()
    given = [rng.integers(0, rows, entries) for rows in (sources, targets)]
    if outside and entries > 1:
        given[0][[9, 20]], given[1][[5, 6, 7, 30]] = [-1, sources], [targets, -(2**60), 2**60, -1]
    starts, room, bad = (
        np.full(targets + 3, 77, np.uint32),
        [np.full(entries + 1, 77) for _ in range(4)],
        np.zeros(1, np.int64),
    )
    wrong = lib("sorted", *given, entries, sources, targets, starts, *room, bad, result=ctypes.c_int64)
    expected = SortEntries().reference(SortEntriesAttrs(source_rows=sources, target_rows=targets), given)
    for found, numbers in zip(room, expected, strict=True):
        np.testing.assert_array_equal(found[:-1], numbers)
        assert found[-1] == 77
    assert (wrong, bad[0]) == ((9, 5) if outside and entries > 1 else (-1, -1)) and starts[-1] == 77
