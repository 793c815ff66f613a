"""Workspaces: the fastest algorithm that fits the bytes free at a step, alone and side by side."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.algorithms import Algorithm
from planner.errors import UserError
from planner.solve import workspace
from planner.solve.workspace import Run, Way, assign, fastest, share_out
from planner.units import Bytes

IMPLICIT, GEMM, FFT = (
    Algorithm("implicit", 9, Bytes(0)),
    Algorithm("gemm", 6, Bytes(80)),
    Algorithm("fft", 4, Bytes(300)),
)
ALGORITHMS = st.lists(st.builds(Algorithm, st.sampled_from("abc"), st.integers(1, 9), st.integers(0, 99).map(Bytes)))


@pytest.mark.parametrize(("free", "expected"), [(0, IMPLICIT), (79, IMPLICIT), (80, GEMM), (299, GEMM), (300, FFT)])
def test_example_by_hand(free: int, expected: Algorithm) -> None:
    assert fastest([GEMM, FFT, IMPLICIT], free) == expected


def test_the_same_node_may_run_differently_at_two_steps() -> None:
    found = assign([200, 0, 320], 400, {0: [IMPLICIT, GEMM, FFT], 2: [IMPLICIT, GEMM, FFT]})
    assert [(a.step, a.algorithm.name, a.free) for a in found] == [(0, "gemm", 200), (2, "gemm", 80)]


@given(ALGORITHMS, st.integers(0, 100))
def test_nothing_that_fits_is_faster(algorithms: list[Algorithm], free: int) -> None:
    best = fastest(algorithms, free)
    assert (best is None) == all(a.workspace > free for a in algorithms)
    if best is not None:
        assert best.workspace <= free
        assert all(a.ns >= best.ns for a in algorithms if a.workspace <= free)


@given(ALGORITHMS, st.integers(0, 100), st.integers(0, 100))
def test_more_room_is_never_slower(algorithms: list[Algorithm], free: int, more: int) -> None:
    small, large = fastest(algorithms, free), fastest(algorithms, free + more)
    assert small is None or (large is not None and large.ns <= small.ns)


def test_a_step_without_an_algorithm_is_named() -> None:
    with pytest.raises(UserError, match=r"SP1301.*step 1"):
        assign([0, 90], 100, {0: [GEMM], 1: [GEMM]})


WAYS = st.lists(st.builds(Way, st.integers(1, 9).map(float), st.integers(0, 9)), min_size=1, max_size=3)
STEPS = 5
RUNS = st.lists(st.tuples(st.integers(0, STEPS - 1), st.integers(1, 3), WAYS), max_size=5).map(
    lambda rows: [Run(f"n{i}", a, min(STEPS, a + n), tuple(ways)) for i, (a, n, ways) in enumerate(rows)]
)
FREE = st.lists(st.integers(0, 20), min_size=STEPS, max_size=STEPS)


def fits(free: list[int], runs: list[Run], ways: tuple[int, ...]) -> bool:
    return all(
        sum(r.ways[w].scratch for r, w in zip(runs, ways, strict=True) if r.first <= step < r.end) <= free[step]
        for step in range(STEPS)
    )


def test_two_side_by_side_share_what_is_free() -> None:
    ways = (Way(9, 0), Way(6, 80), Way(4, 300))
    together = [Run("a", 0, 2, ways), Run("b", 1, 2, ways)]
    assert share_out([100, 100], together) in ({"a": 0, "b": 1}, {"a": 1, "b": 0})
    assert share_out([100, 300], [Run("a", 0, 1, ways), Run("b", 1, 2, ways)]) == {"a": 1, "b": 2}


@given(FREE, RUNS)
def test_no_combination_that_fits_is_faster(free: list[int], runs: list[Run]) -> None:
    times = [
        sum(r.ways[w].ns for r, w in zip(runs, ways, strict=True))
        for ways in product(*(range(len(r.ways)) for r in runs))
        if fits(free, runs, ways)
    ]
    if not times:
        with pytest.raises(UserError, match="SP1301"):
            share_out(free, runs)
        return
    found = share_out(free, runs)
    assert fits(free, runs, tuple(found[r.node] for r in runs))
    assert sum(r.ways[found[r.node]].ns for r in runs) == min(times)


@given(FREE, RUNS)
def test_a_beam_finds_what_fits_or_says_so(free: list[int], runs: list[Run]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "MOST_STATES", 2)
        try:
            found = share_out(free, runs)
        except UserError as error:
            assert error.code == "SP1301"
            return
    assert fits(free, runs, tuple(found[r.node] for r in runs))


def test_a_step_that_not_even_the_smallest_ways_fit_is_named() -> None:
    with pytest.raises(UserError, match=r"SP1301.*'b' at step 1: 5 bytes"):
        share_out([9, 5], [Run("a", 0, 2, (Way(1, 4),)), Run("b", 1, 2, (Way(1, 2),))])
