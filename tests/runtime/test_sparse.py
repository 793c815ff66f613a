"""Products of sparse matrices: entries in any order, in order, and some whose indices are outside of their matrix."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from build import compile_library
from loops_cases import SLICES, assert_close, cut, poisoned, run_slices

from planner.ops.sparse import Sddmm, SddmmAttrs, Spmm, SpmmAttrs

ENTRIES, X_ROWS, ROWS, COLUMNS, HEADS = 300, 31, 23, 60, 5


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("sparse.cpp"))


def drawn(ordered):
    rng = np.random.default_rng()
    sources, targets = rng.integers(0, X_ROWS, ENTRIES), rng.integers(0, ROWS, ENTRIES)
    x, weights = (rng.standard_normal((n, m)).astype(np.float32) for n, m in ((X_ROWS, COLUMNS), (ENTRIES, HEADS)))
    return sources, np.sort(targets) if ordered else targets, x, weights


def product(lib, slices, sources, targets, x, weights, ordered, by_rows=False):
    """The result, and what the slices say of bad sources."""
    y, found = poisoned(ROWS, COLUMNS), []
    heads = 1 if weights is None else weights.shape[1]
    where = (sources, targets, len(sources), x, X_ROWS, weights, heads, ordered, y, ROWS, COLUMNS, by_rows)
    extent = ROWS if by_rows else COLUMNS
    run_slices(slices, lambda s: found.append(lib("product", *where, *cut(extent, slices, s), result=ctypes.c_int64)))
    return y, found


@pytest.mark.parametrize("slices", SLICES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("ordered", "by_rows"), [(0, 0), (1, 0), (1, 1)])
def test_spmm(lib, slices, weighted, ordered, by_rows):
    sources, targets, x, weights = drawn(ordered)
    weights = weights if weighted else None
    y, found = product(lib, slices, sources, targets, x, weights, ordered, by_rows)
    inputs = [a.astype(np.float64) for a in (x, weights) if a is not None]
    (expected,) = Spmm().reference(SpmmAttrs(rows=ROWS), [inputs[0], sources, targets, *inputs[1:]])
    assert_close(y, expected, 1e-6)
    assert set(found) == {-1}


def test_slices_and_order_do_not_change_a_bit(lib):
    sources, targets, x, weights = drawn(False)
    order = np.argsort(targets, kind="stable")
    plain, _ = product(lib, 1, sources, targets, x, weights, 0)
    ordered = (sources[order], targets[order], x, weights[order])
    for slices in SLICES:
        for by_rows in (0, 1):
            y, _ = product(lib, slices, *ordered, 1, by_rows)
            np.testing.assert_array_equal(y, plain)


@pytest.mark.parametrize("ordered", [0, 1])
def test_indices_outside_are_left_out(lib, ordered):
    sources, targets, x, _ = drawn(ordered)
    sources[[7, 9, 200]] = [X_ROWS, -1, 2**60]
    targets[[0, 1, -1]] = [-5, -1, ROWS] if ordered else [ROWS, -1, 2**60]
    y, found = product(lib, 2, sources, targets, x, None, ordered)
    (expected,) = Spmm().reference(SpmmAttrs(rows=ROWS), [x.astype(np.float64), sources, targets])
    assert_close(y, expected, 1e-6)
    assert found == [7, 7]


def test_an_order_that_is_none_is_no_race(lib):
    """A slice of rows writes its own alone, whatever the entries are."""
    sources, targets, x, _ = drawn(False)
    guard = poisoned(ROWS, COLUMNS)
    where = (sources, targets, ENTRIES, x, X_ROWS, None, 1, 1, guard, ROWS, COLUMNS, 1, 5, 9)
    before = guard.copy()
    lib("product", *where, result=ctypes.c_int64)
    others = np.r_[0:5, 9:ROWS]
    np.testing.assert_array_equal(guard[others], before[others])


@pytest.mark.parametrize("slices", SLICES)
def test_sddmm(lib, slices):
    sources, targets, a, _ = drawn(False)
    b = np.random.default_rng().standard_normal((ROWS, COLUMNS)).astype(np.float32)
    sources[5], targets[50] = X_ROWS, -1
    y, bad, found = poisoned(ENTRIES, HEADS), np.zeros(1, np.int64), set()
    where = (sources, targets, ENTRIES, a, X_ROWS, b, ROWS, COLUMNS, HEADS, y, bad)

    def run(s):
        source = lib("products_of_rows", *where, *cut(ENTRIES, slices, s), result=ctypes.c_int64)
        found.add((source, int(bad[0])))

    run_slices(slices, run)
    assert found == {1: {(5, 50)}, 2: {(5, 50), (-1, -1)}, 3: {(5, 50), (-1, -1)}, 5: {(5, 50), (-1, -1)}}[slices]
    inputs = [a.astype(np.float64), b.astype(np.float64), sources, targets]
    assert_close(y, Sddmm().reference(SddmmAttrs(heads=HEADS), inputs)[0], 1e-6)
    assert (y[[5, 50]] == 0).all()
