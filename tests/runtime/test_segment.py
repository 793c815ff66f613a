"""The largest rows of segments: entries in any order, in order, equal elements, NaN, indices outside of a matrix."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from build import compile_library
from loops_cases import SLICES, assert_close, cut, poisoned, run_slices

from planner.ops.segment import SegmentAttrs, SegmentMax, SegmentMaxBackward

ENTRIES, X_ROWS, ROWS, COLUMNS = 120, 31, 70, 60


@pytest.fixture(scope="module")
def lib():
    return compile_library(Path(__file__).with_name("segment.cpp"))


@pytest.fixture(params=[(0, 0), (1, 0), (1, 1)], ids=["any", "ordered", "rows"])
def order(request):
    """(entries are in the order of their targets, slices cut rows)"""
    return request.param


def drawn(ordered):
    """Sources, targets, and rows of few numbers: some rows of the result have no entry, many have equal elements."""
    rng = np.random.default_rng()
    sources, targets = rng.integers(0, X_ROWS, ENTRIES), rng.integers(0, ROWS, ENTRIES)
    return sources, np.sort(targets) if ordered else targets, rng.integers(-2, 3, (X_ROWS, COLUMNS)).astype(np.float32)


def largest(lib, slices, order, sources, targets, x):
    """Maxima, shares, and what slices say of bad sources."""
    ordered, by_rows = order
    y, share, found = poisoned(ROWS, COLUMNS), poisoned(ROWS, COLUMNS), set()
    where = (sources, targets, len(sources), x, X_ROWS, ordered, y, share, ROWS, COLUMNS, by_rows)
    extent = ROWS if by_rows else COLUMNS
    run_slices(slices, lambda s: found.add(lib("largest", *where, *cut(extent, slices, s), result=ctypes.c_int64)))
    return y, share, found


def gradient(lib, slices, order, sources, targets, dy, x, y):
    ordered, by_rows = order
    dx, found = poisoned(X_ROWS, COLUMNS), set()
    where = (sources, targets, len(sources), dy, x, y, ROWS, ordered, dx, X_ROWS, COLUMNS, by_rows)
    extent = X_ROWS if by_rows else COLUMNS

    def run(s):
        found.add(lib("largest_backward", *where, *cut(extent, slices, s), result=ctypes.c_int64))

    run_slices(slices, run)
    return dx, found


@pytest.mark.parametrize("slices", SLICES)
def test_maxima_and_their_shares(lib, slices, order):
    sources, targets, x = drawn(order[0])
    sources[0] = 3
    x[3, ::7], x[5, ::7], x[4, 1] = np.nan, np.nan, -np.inf
    y, share, found = largest(lib, slices, order, sources, targets, x)
    with np.errstate(invalid="ignore"):
        expected, shares = SegmentMax().reference(SegmentAttrs(rows=ROWS), [x, sources, targets])
    nan = np.isnan(expected)
    assert (expected == -np.inf).any() and nan.any() and (shares[~nan] < 1).any() and found == {-1}
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(share, shares.astype(np.float32))
    assert (share[nan] > 0).all()  # there is an entry


@pytest.mark.parametrize("slices", SLICES)
def test_gradient(lib, slices, order):
    rows, picked, x = drawn(False)  # the forward's sources and targets
    y, share, _ = largest(lib, 1, (0, 0), rows, picked, x)
    dy = np.random.default_rng().standard_normal((ROWS, COLUMNS)).astype(np.float32)
    if order[0]:
        places = np.argsort(rows, kind="stable")
        rows, picked = rows[places], picked[places]
    dx, found = gradient(lib, slices, order, picked, rows, dy * share, x, y)
    inputs = [a.astype(np.float64) for a in (dy * share, x, y)]
    (expected,) = SegmentMaxBackward().reference(SegmentAttrs(rows=X_ROWS), [*inputs, picked, rows])
    assert_close(dx, expected, 1e-6)
    assert found == {-1}
    # Whatever the maxima's gradients are, all of each arrives.
    np.testing.assert_allclose(dx.sum(0), np.where(share > 0, dy, 0).sum(0), rtol=1e-3, atol=1e-4)


def test_indices_outside_are_left_out(lib, order):
    sources, targets, x = drawn(order[0])
    sources[[7, 9, 110]] = [X_ROWS, -1, 2**60]
    targets[[0, 1, -1]] = [-5, -1, ROWS] if order[0] else [ROWS, -1, 2**60]
    y, share, found = largest(lib, 1, order, sources, targets, x)
    expected, shares = SegmentMax().reference(SegmentAttrs(rows=ROWS), [x, sources, targets])
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(share, shares.astype(np.float32))
    assert found == {7}


def test_indices_outside_have_no_gradient(lib, order):
    targets, sources, x = drawn(False)
    if order[0]:
        targets.sort()
    sources[[7, 9, 110]] = [ROWS, -1, 2**60]
    targets[[0, 1, -1]] = [-5, -1, X_ROWS] if order[0] else [X_ROWS, -1, 2**60]
    y = np.random.default_rng().integers(-2, 3, (ROWS, COLUMNS)).astype(np.float32)
    dy = np.ones((ROWS, COLUMNS), np.float32)
    dx, found = gradient(lib, 1, order, sources, targets, dy, x, y)
    (expected,) = SegmentMaxBackward().reference(SegmentAttrs(rows=X_ROWS), [dy, x, y, sources, targets])
    np.testing.assert_array_equal(dx, expected)
    assert found == {7}


@pytest.mark.parametrize("what", ["largest", "largest_backward"])
def test_an_order_that_is_none_is_no_race(lib, what):
    """A slice of rows writes its own alone, whatever the entries are."""
    sources, targets, x = drawn(False)
    y, share, dx = poisoned(ROWS, COLUMNS), poisoned(ROWS, COLUMNS), poisoned(X_ROWS, COLUMNS)
    if what == "largest":
        where, guards = (sources, targets, ENTRIES, x, X_ROWS, 1, y, share, ROWS, COLUMNS, 1, 5, 9), (y, share)
    else:
        dy = np.ones((ROWS, COLUMNS), np.float32)
        where, guards = (targets, sources, ENTRIES, dy, x, dy.copy(), ROWS, 1, dx, X_ROWS, COLUMNS, 1, 5, 9), (dx,)
    before = [g.copy() for g in guards]
    lib(what, *where, result=ctypes.c_int64)
    for guard, old in zip(guards, before, strict=True):
        others = np.r_[0:5, 9 : len(guard)]
        np.testing.assert_array_equal(guard[others], old[others])
